package amd64

import (
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
)

// wholePrograms are those that the pass over the bytes is held against the analysis with.
func wholePrograms(t *testing.T) map[string]bool {
	return map[string]bool{"/lib/x86_64-linux-gnu/libc.so.6": false, "/usr/bin/gdb": false, toolPath(t, "go"): true}
}

// measure and Decode say the same of any bytes.
func TestMeasureAgainstDecode(t *testing.T) {
	code := make([]byte, 1<<16)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range code {
		code[i] = byte(r.Uint32())
	}
	checkMeasure(t, code)
	im := openImage(t, "/lib/x86_64-linux-gnu/libc.so.6")
	for _, f := range im.funcs {
		checkMeasure(t, im.bytes(f.addr, f.end-f.addr))
	}
	for op := range 256 { // all opcodes with all ModRM bytes, and with REX
		for modrm := range 256 {
			checkMeasure(t, []byte{0x48, byte(op), byte(modrm), 0x25, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
			checkMeasure(t, []byte{0x41, 0x0f, byte(op), byte(modrm), 0x65, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
		}
	}
}

func checkMeasure(t *testing.T, code []byte) {
	t.Helper()
	for i := range code {
		m, ok := measure(code[i:])
		in, err := Decode(code[i:])
		if ok != (err == nil) {
			t.Fatalf("% x: measured %v, decoded %v", code[i:min(len(code), i+MaxLen)], ok, err)
		}
		want := measured{len: int(in.Len), kind: in.Kind, wide: ok && in.wide()}
		if in.RelLen > 0 && !in.RIPMem {
			want.rel = in.Rel
		}
		if ok && m != want {
			t.Fatalf("% x: measured %+v, decoded %+v", code[i:i+int(in.Len)], m, want)
		}
	}
}

// quickly compares what the pass over a function's bytes allows with what the analysis does,
// and says whether it allowed anything.
func quickly(t *testing.T, f *arch.Func) bool {
	t.Helper()
	got, err := X86.Analyse(f)
	if err != nil {
		t.Fatal(err)
	}
	fn := got.(*function)
	points := []uint64{fn.entry}
	quick := fn.entryRegion(points, &arch.Policy{})
	fl := fn.flow()
	if n, ok := fl.RetAt(fn.entry); ok && n != 0 {
		t.Errorf("%s: the return address is %d bytes behind the stack pointer at the entry", f.Name, n)
	}
	if s := fn.survey(); s.ok && !s.wide && fl.wide() {
		t.Errorf("%s: wide, and the pass did not see it", f.Name)
	}
	if quick == nil {
		return false
	}
	r := quick[0].(*Region)
	all, refused := (&Regions{Flow: fl, After: padding(f.After)}).Plan(points)
	if len(refused) > 0 || len(all) != 1 || !sameRegion(all[0], r) {
		t.Errorf("%s+0x%x: the pass allows %+v, the analysis %+v %v: % x", f.Name, fn.entry-f.Addr, r, all, refused, f.Code[:min(64, len(f.Code))])
	}
	return true
}

func sameRegion(a, b *Region) bool {
	return a.Addr == b.Addr && a.Len == b.Len && a.Ends == b.Ends && a.Trap == b.Trap &&
		slices.EqualFunc(a.Steps, b.Steps, func(s, o Step) bool { return reflect.DeepEqual(s, o) })
}

// input makes the engine's input of a function of a file, with NAME.cold as a part.
func (im *image) input(f imageFunc, isGo bool) *arch.Func {
	in := im.fn(f, isGo)
	out := &arch.Func{
		Name: in.Name, Addr: in.Addr, Code: in.Code, Go: isGo, Mem: in.Mem, Inside: in.Inside,
		Morestack: func(a uint64) bool {
			to, ok := im.at(a)
			return ok && strings.HasPrefix(to.name, "runtime.morestack")
		},
	}
	for _, p := range in.Parts {
		out.Parts = append(out.Parts, arch.Part(p))
	}
	return out
}

// What the pass allows at the entries of real programs is what the analysis allows, and it
// is nearly all of it.
func TestEntryRegionsOfWholePrograms(t *testing.T) {
	for path, isGo := range wholePrograms(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			im, quick := openImage(t, path), 0
			for _, f := range im.funcs {
				if quickly(t, im.input(f, isGo)) {
					quick++
				}
			}
			t.Logf("%d functions, %d without an analysis", len(im.funcs), quick)
			if quick*100 < len(im.funcs)*75 {
				t.Errorf("%d of %d functions without an analysis, want three in four", quick, len(im.funcs))
			}
		})
	}
}

// The same with code that no compiler made: bytes of real functions changed at random, and
// short functions of random branches, which go anywhere.
func TestEntryRegionsOfBrokenCode(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	im, allowed := openImage(t, "/lib/x86_64-linux-gnu/libc.so.6"), 0
	try := func(f *arch.Func) {
		f.Go = r.IntN(2) == 0
		if r.IntN(4) == 0 {
			f.Entries = []uint64{f.Addr + r.Uint64N(12)}
		}
		if quickly(t, f) {
			allowed++
		}
	}
	for range 20_000 {
		f := im.funcs[r.IntN(len(im.funcs))]
		in := im.input(f, false)
		in.Code = slices.Clone(in.Code[:min(len(in.Code), 200)])
		for range 1 + r.IntN(4) {
			in.Code[r.IntN(len(in.Code))] = byte(r.Uint32())
		}
		try(in)
	}
	for range 60_000 {
		in := &arch.Func{Name: "random", Addr: 0x1000, Code: randomBranches(r)}
		if r.IntN(3) == 0 {
			in.Parts = []arch.Part{{Addr: 0x1000 + uint64(len(in.Code)) + 5*r.Uint64N(2), Code: randomBranches(r)}}
		}
		try(in)
	}
	if allowed < 10_000 {
		t.Errorf("only %d entries were allowed: the test shows little", allowed)
	}
}

// randomBranches makes code that is mostly branches within a few bytes, and padding.
func randomBranches(r *rand.Rand) []byte {
	var out []byte
	near := func() byte { return byte(r.IntN(80) - 60) }
	for range 3 + r.IntN(12) {
		switch r.IntN(12) {
		case 0:
			out = append(out, 0xeb, near())
		case 1, 2:
			out = append(out, 0x70|byte(r.IntN(16)), near())
		case 3:
			out = append(out, 0xe8, near(), 0xff, 0xff, 0xff)
		case 4:
			out = append(out, 0x0f, 0x84, near(), 0xff, 0xff, 0xff)
		case 5:
			out = append(out, 0xc3)
		case 6:
			out = append(out, [][]byte{{0xcc}, {0x90}, {0, 0}, {0}, {0x0f, 0x1f, 0x40, 0}, {0x66, 0x90}, {0xff, 0xe0}, {0xe2, near()}}[r.IntN(8)]...)
		default:
			out = append(out, [][]byte{{0x55}, {0x48, 0x89, 0xe5}, {0x48, 0x83, 0xec, 0x18}, {0xb8, 1, 2, 3, 4}, {0x31, 0xc0}}[r.IntN(5)]...)
		}
	}
	return out
}

// Whatever goes into the bytes of the jump, or may, is seen: each function is refused by the
// pass alone, and the same without the branch is not.
func TestEntryRegionsRefused(t *testing.T) {
	const head = "55 53 50 51 52 56 57 "
	for name, c := range map[string]struct {
		code, part string
		entry      uint64
	}{
		"loop back into it":      {code: head + "90 eb f7"},
		"conditional jump back":  {code: head + "74 f8 c3"},
		"far jump back":          {code: head + "0f 84 f4 ff ff ff c3"},
		"call of it":             {code: head + "e8 f5 ff ff ff c3"},
		"loop":                   {code: head + "e2 f9 c3"},
		"jump out of a part":     {code: head + "c3", part: "e9 ed ff ff ff"},
		"entry from outside":     {code: head + "c3", entry: 3},
		"into an instruction":    {code: head + "b8 00 00 00 00 eb fb c3"},
		"indirect jump":          {code: head + "ff e0"},
		"indirect jump in part":  {code: head + "c3", part: "ff e0"},
		"bytes without meaning":  {code: head + "c3 06"},
		"cut off":                {code: head + "c3 e9"},
		"far return":             {code: head + "cb"},
		"breakpoint in it":       {code: "55 cc 53 50 51 52 c3"},
		"call before its end":    {code: "ff d0 53 50 51 52 c3"},
		"too short":              {code: "55 5d c3"},
		"system call in it":      {code: "55 0f 05 53 50 51 c3"},
		"what can not run apart": {code: "55 cd 80 53 50 51 c3"},
	} {
		f := &arch.Func{Name: name, Addr: 0x1000, Code: hexBytes(t, c.code)}
		if c.part != "" {
			f.Parts = []arch.Part{{Addr: 0x1010, Code: hexBytes(t, c.part)}}
		}
		if c.entry != 0 {
			f.Entries = []uint64{f.Addr + c.entry}
		}
		if quickly(t, f) {
			t.Errorf("%s: allowed", name)
		}
	}
	if !quickly(t, &arch.Func{Name: "harmless", Addr: 0x1000, Code: hexBytes(t, head+"74 f7 c3"), Parts: []arch.Part{{Addr: 0x1010, Code: hexBytes(t, "e9 eb ff ff ff")}}}) {
		t.Error("a function that goes back to its start is refused")
	}
}

// A policy that asks for more than the pass looks at is left to the analysis.
func TestEntryRegionPolicies(t *testing.T) {
	f := &arch.Func{Name: "f", Addr: 0x1000, Code: hexBytes(t, "55 48 89 e5 53 50 51 52 c3")}
	for _, p := range []arch.Policy{
		{Force: arch.TacticBoost},
		{Unoptimised: []uint64{0x1000}},
		{Held: []uint64{0x1001}},
	} {
		fn, err := X86.Analyse(f)
		if err != nil {
			t.Fatal(err)
		}
		if r := fn.(*function).entryRegion([]uint64{0x1000}, &p); r != nil {
			t.Errorf("%+v: %+v", p, r)
		}
	}
	f.Keep = []interval.Range{{Start: 0x1001, End: 0x1002}}
	fn, err := X86.Analyse(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, refused := fn.Plan([]uint64{0x1000}, arch.Policy{Force: arch.TacticJump}); len(refused) != 1 {
		t.Error("a jump over bytes that must stay")
	}
}
