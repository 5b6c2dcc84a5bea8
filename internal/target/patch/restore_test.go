package patch

import (
	"errors"
	"slices"
	"testing"
)

func TestRestore(t *testing.T) {
	a := Entry{Addr: 0x1000, Orig: []byte("abcde"), Patch: []byte("12345")}
	anew := Entry{Addr: 0x1000, Orig: []byte("abcde"), Patch: []byte("1987X")}
	next := Entry{Addr: 0x1003, Orig: []byte("defgh"), Patch: []byte("ABCDE")}
	far := Entry{Addr: 0x2000, Orig: []byte("vwxyz"), Patch: []byte("67890")}
	for _, c := range []struct {
		name     string
		sites    []Entry
		have     string // from 0x1000
		restored int
		foreign  []uint64
		want     string
	}{
		{"patched", []Entry{a}, "12345fgh", 1, nil, "abcdefgh"},
		{"not patched yet", []Entry{a}, "abcdefgh", 0, nil, "abcdefgh"},
		{"replaced", []Entry{a, anew}, "1987Xfgh", 1, nil, "abcdefgh"},
		{"not replaced yet", []Entry{anew, a}, "12345fgh", 1, nil, "abcdefgh"},
		{"replaced by one further on", []Entry{a, next}, "abcABCDE", 1, nil, "abcdefgh"},
		{"killed between the two", []Entry{next, a}, "123ABCDE", 1, nil, "abcdefgh"},
		{"somebody's breakpoint", []Entry{a}, "\xcc2345fgh", 0, []uint64{0x1000}, "\xcc2345fgh"},
		{"somebody's in one of two", []Entry{a, next}, "123ABC\xccE", 0, []uint64{0x1000, 0x1003}, "123ABC\xccE"},
		{"gone", []Entry{far}, "abcdefgh", 0, nil, "abcdefgh"},
	} {
		mem := []byte(c.have)
		ws, restored, foreign := Restore(c.sites, func(addr uint64, b []byte) error {
			if addr != 0x1000 && addr != 0x1003 {
				return errors.New("nothing there")
			}
			copy(b, mem[addr-0x1000:])
			return nil
		})
		for _, w := range ws {
			copy(mem[w.Addr-0x1000:], w.New)
		}
		if restored != c.restored || !slices.Equal(foreign, c.foreign) || string(mem) != c.want {
			t.Errorf("%s: %d restored, foreign 0x%x, memory %q", c.name, restored, foreign, mem)
		}
	}
}
