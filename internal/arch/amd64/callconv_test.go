package amd64

import (
	"fmt"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// shape makes a value of numbers: i and f with their sizes, one behind another, each aligned; a letter before them: r by its
// address, a with an array.
func shape(s string) (out arch.Shape) {
	for _, w := range strings.Fields(s) {
		switch w {
		case "ref":
			out.ByRef = true
			continue
		case "array":
			out.Array = true
			continue
		}
		var size int64
		fmt.Sscan(w[1:], &size)
		out.Size = alignUp(out.Size, size)
		out.Scalars = append(out.Scalars, arch.Scalar{Off: out.Size, Size: size, Float: w[0] == 'f'})
		out.Size += size
		out.Align = max(out.Align, size)
	}
	if out.Align > 0 {
		out.Size = alignUp(out.Size, out.Align)
	}
	return out
}

// where writes down a placement: registers, v for one of vectors, words of the stack, what is in memory in brackets.
func where(p arch.Placement) string {
	var out []string
	for _, part := range p.Parts {
		switch {
		case part.Vector:
			out = append(out, "v")
		case part.At.Kind == fetch.BaseStack:
			out = append(out, fmt.Sprintf("stack%d", part.At.N))
		default:
			out = append(out, regNames[part.At.Reg])
		}
	}
	s := strings.Join(out, " ")
	if p.Memory {
		return fmt.Sprintf("[%s+%d]", s, p.Off)
	}
	return s
}

// TestPlace places values as the conventions say.
func TestPlace(t *testing.T) {
	for _, c := range []struct {
		abi          *abi
		params, want string // separated by commas
		results, out string
	}{
		{sysV, "i8,i4,i1,i8,i8,i8,i8,i4", "di,si,dx,cx,r8,r9,stack1,stack2", "i4", "ax"},
		{sysV, "f8,i8,f4", "v,di,v", "f8", "v"},
		{sysV, "i4 i4,i8 i8,i8 f8,f4 f4 i4", "di,si dx,cx v,v r8", "i8 f8", "ax v"},
		{sysV, "i8 i8 i8,i8", "[sp+8],si", "i8 i8 i8", "[ax+0]"},
		{sysV, "i8,i8,i8,i8,i8,i8 i8,i8", "di,si,dx,cx,r8,[sp+8],r9", "", ""},
		{sysV, "ref i8 i8 i8,i4", "[si+0],dx", "ref i8", "[ax+0]"},
		{sysV, "i8,f16,i8", "di,[sp+8],si", "", ""},
		{sysV, "i8,i8,i8,i8,i8,i8,i8,f16", "di,si,dx,cx,r8,r9,stack1,[sp+24]", "", ""},
		{sysV, "i16,i1", "di si,dx", "i16", "ax dx"},
		{sysV, ",i4", ",di", "", ""},
		{goReg, "i8 i8,i8,f8,i8 i8 i8", "ax bx,cx,v,di si r8", "i8,i8 i8", "ax,bx cx"},
		{goReg, "i8 i8 i8,i8 i8 i8,i8 i8 i8,i8", "ax bx cx,di si r8,r9 r10 r11,[sp+8]", "i8", "ax"},
		{goReg, "i1,array i4 i4,i1", "ax,[sp+8],bx", "array i8 i8", "[sp+16]"},
		{goABI, "i1,i4,i8 i8", "[sp+8],[sp+12],[sp+16]", "i1,i8", "[sp+32],[sp+40]"},
	} {
		shapes := func(s string) (out []arch.Shape) {
			if s == "" {
				return nil
			}
			for _, one := range strings.Split(s, ",") {
				out = append(out, shape(one))
			}
			return out
		}
		text := func(ps []arch.Placement) string {
			var out []string
			for _, p := range ps {
				out = append(out, where(p))
			}
			return strings.Join(out, ",")
		}
		args, outs, err := c.abi.Place(shapes(c.params), shapes(c.results))
		if err != nil || text(args) != c.want || text(outs) != c.out {
			t.Errorf("%s, %s: %s, %s, %v; want %s, %s", c.abi.name, c.params, text(args), text(outs), err, c.want, c.out)
		}
	}
	if _, _, err := sysV.Place(nil, make([]arch.Shape, 2)); err == nil {
		t.Error("C has two results")
	}
}
