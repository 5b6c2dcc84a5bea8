package process

import (
	"bytes"
	"fmt"
	"testing"
)

// What of a page the kernel's breakpoints have changed, and that a page with anything else is left alone.
func TestBreakpoints(t *testing.T) {
	want := bytes.Repeat([]byte{0x90}, 64)
	copy(want[16:], "\x0f\x1f\x44\x00\x00")
	want[63] = 0x0f // a nop of another page's
	page := func(at int, b ...byte) []byte {
		out := bytes.Clone(want)
		copy(out[at:], b)
		return out
	}
	for _, c := range []struct {
		what string
		have []byte
		out  string
	}{
		{"nothing", page(0), "[]"},
		{"one", page(5, 0xcc), "[{5 6}]"},
		{"two", page(5, 0xcc, 0xcc), "[{5 6} {6 7}]"},
		{"at the nop", page(16, 0xcc), "[{16 17}]"},
		{"a call to the kernel's trampoline", page(16, 0xe8, 1, 0, 0, 0), "[{16 21}]"},
		{"a call to elsewhere", page(16, 0xe8, 2, 0, 0, 0), "[]"},
		{"a call at no nop", page(17, 0xe8, 1, 0, 0, 0), "[]"},
		{"a call behind the page's end", page(63, 0xe8), "[]"},
		{"a breakpoint and something else", page(5, 0xcc, 1), "[]"},
	} {
		got := breakpoints(c.have, want, func(off int, rel int32) bool { return off == 21 && rel == 1 })
		if s := fmt.Sprint(got); s != c.out {
			t.Errorf("%s: %s, want %s", c.what, s, c.out)
		}
	}
}

// Only mappings that have never been writable are the file's, but for what others have written.
func TestPristineMaps(t *testing.T) {
	const smaps = `1000-2000 r-xp 00000000 fe:00 1 /a: b-c
Size:                  4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me 
2000-3000 r-xp 00001000 fe:00 1 /a
Anonymous:             4 kB
VmFlags: rd ex mr mw me ac 
3000-4000 r-xp 00001000 fe:00 1 /a
VmFlags: rd ex mr mw me nr 
4000-5000 rwxp 00001000 fe:00 1 /a
VmFlags: rd wr ex mr mw me 
7f0000005000-7f0000006000 r-xp 00001000 fe:00 1 /a
VmFlags: rd ex mr mw me 
6000-7000 r-xp 00001000 fe:00 1 /a
`
	if got := fmt.Sprint(pristineMaps([]byte(smaps))); got != "map[4096:true 8192:false 12288:false 16384:false 139637976748032:true]" {
		t.Error(got)
	}
}
