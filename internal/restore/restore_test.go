package restore

import (
	"errors"
	"slices"
	"testing"
)

func TestPlan(t *testing.T) {
	a := Site{Addr: 0x1000, Orig: []byte("abcde"), Patch: []byte("12345")}
	anew := Site{Addr: 0x1000, Orig: []byte("abcde"), Patch: []byte("1987X")}
	next := Site{Addr: 0x1003, Orig: []byte("defgh"), Patch: []byte("ABCDE")}
	far := Site{Addr: 0x2000, Orig: []byte("vwxyz"), Patch: []byte("67890")}
	for _, c := range []struct {
		name     string
		sites    []Site
		have     string // from 0x1000
		restored int
		foreign  []uint64
		want     string
	}{
		{"patched", []Site{a}, "12345fgh", 1, nil, "abcdefgh"},
		{"not patched yet", []Site{a}, "abcdefgh", 0, nil, "abcdefgh"},
		{"replaced", []Site{a, anew}, "1987Xfgh", 1, nil, "abcdefgh"},
		{"not replaced yet", []Site{anew, a}, "12345fgh", 1, nil, "abcdefgh"},
		{"replaced by one further on", []Site{a, next}, "abcABCDE", 1, nil, "abcdefgh"},
		{"killed between the two", []Site{next, a}, "123ABCDE", 1, nil, "abcdefgh"},
		{"somebody's breakpoint", []Site{a}, "\xcc2345fgh", 0, []uint64{0x1000}, "\xcc2345fgh"},
		{"somebody's in one of two", []Site{a, next}, "123ABC\xccE", 0, []uint64{0x1000, 0x1003}, "123ABC\xccE"},
		{"gone", []Site{far}, "abcdefgh", 0, nil, "abcdefgh"},
	} {
		mem := []byte(c.have)
		ws, restored, foreign := Plan(c.sites, func(addr uint64, b []byte) error {
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
