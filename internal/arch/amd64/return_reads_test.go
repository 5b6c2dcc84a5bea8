package amd64

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// TestReadsReturn asks functions of a few instructions.
func TestReadsReturn(t *testing.T) {
	for name, c := range map[string]struct {
		code  string
		at    int // -1: it does not read
		tails int
	}{
		"__builtin_return_address(0)": {"48 8b 04 24 c3", 0, 0},
		"in a frame":                  {"48 83 ec 18 48 8b 44 24 18 48 83 c4 18 c3", 4, 0},
		"by the frame pointer":        {"55 48 89 e5 53 48 8b 45 08 5b 5d c3", 5, 0},
		"an argument on the stack":    {"48 8b 44 24 08 c3", -1, 0},
		"the saved frame pointer":     {"55 48 89 e5 48 8b 45 00 5d c3", -1, 0},
		"the end of an array":         {"48 83 ec 18 48 8d 44 24 18 48 83 c4 18 c3", -1, 0},
		"pop of the return address":   {"59 51 c3", 0, 0},
		"a compare":                   {"48 39 3c 24 75 01 c3 c3", 0, 0},
		"another pointer":             {"48 89 e1 48 8b 01 c3", -1, 0},
		"tail jump":                   {"e9 00 10 00 00", -1, 1},
		"indirect tail jump":          {"ff 25 00 10 00 00", -1, 1},
		"by register":                 {"ff e0", -1, 0},
	} {
		fn, err := X86.Analyse(&arch.Func{Name: name, Addr: 0x10000, Code: hexBytes(t, c.code)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for range 2 { // the second time it remembers
			at, ok := fn.ReadsReturn()
			if ok != (c.at >= 0) || ok && at != 0x10000+uint64(c.at) {
				t.Errorf("%s: reads at 0x%x, %v", name, at, ok)
			}
			tails := fn.Tails()
			if len(tails) != c.tails || c.tails > 0 && tails[0].Target|tails[0].Slot != 0x11000+uint64(len(hexBytes(t, c.code))) {
				t.Errorf("%s: tails %x", name, tails)
			}
			fn.Release()
		}
	}
}

// TestReadsReturnInLibc looks through the C library: those that are known to ask who calls are
// found, and hardly any other.
func TestReadsReturnInLibc(t *testing.T) {
	im := openImage(t, "/lib/x86_64-linux-gnu/libc.so.6")
	var found []string
	n := 0
	for _, f := range im.funcs {
		fn, err := X86.Analyse(&arch.Func{Name: f.name, Addr: f.addr, Code: im.bytes(f.addr, f.end-f.addr), Mem: im.mem, Inside: im.inside})
		if err != nil {
			continue
		}
		n++
		if _, ok := fn.ReadsReturn(); ok {
			found = append(found, f.name)
		}
		fn.Release()
	}
	t.Logf("%d of %d: %v", len(found), n, found)
	for _, name := range []string{"dlsym", "dl_iterate_phdr", "__sigsetjmp", "getcontext", "_mcount"} {
		if !slices.Contains(found, name) {
			t.Errorf("%s reads its return address, and is not found", name)
		}
	}
	if len(found) > n/100 {
		t.Errorf("%d of %d functions read their return address", len(found), n)
	}
}
