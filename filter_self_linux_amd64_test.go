//go:build !race

package kprobes_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

//go:noinline
func filtered(n int32, name string) int { return int(n) + len(name) }

// TestSelfFilter has filters on the own process's calls: generated code runs one of numbers, the reader one with a string; what
// does not pass is counted, and a filter that is wrong is an error with the kernel's text.
func TestSelfFilter(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	var defs []*event.Def
	for _, c := range [][2]string{
		{"p:numbers " + selfPrefix + "filtered n=$arg1:s32", "n < 0 || n & 8 && n <= 12"},
		{"p:strings " + selfPrefix + "filtered n=$arg1:s32 name=$arg2:gostring", `name ~ "b*" && n > 2`},
		{"r:results " + selfPrefix + "filtered v=$retval:s64", "v == 11"},
	} {
		d, err := event.Parse(c[0])
		if err != nil {
			t.Fatal(err)
		}
		d.Filter = c[1]
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"apple", "banana", "cherry"}
	var want [3]uint64
	const calls = 60
	for i := range int32(calls) {
		n, name := i-20, names[i%3]
		if n < 0 || n&8 != 0 && n <= 12 {
			want[0]++
		}
		if name == "banana" && n > 2 {
			want[1]++
		}
		if filtered(n, name) == 11 {
			want[2]++
		}
	}
	var got [3]uint64
	var counts [3]kprobes.Counts
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	read := func() (n uint64) {
		core.Poll(func(h *kprobes.Hit) {
			for i, e := range evs {
				if h.Event.Name == e.Name {
					got[i]++
				}
			}
		})
		for i, e := range evs {
			counts[i] = core.Counts(e)
			n += counts[i].Hits
		}
		return n
	}
	for read() < 3*calls { // a record is read some milliseconds after it was written
	}
	for i, e := range evs {
		if n := counts[i]; got[i] != want[i] || n.Read != want[i] || n.Filtered != calls-want[i] || n.Hits != calls || want[i] == 0 {
			t.Errorf("%s: %d hits, want %d; %+v", e.Name, got[i], want[i], n)
		}
	}
	bad := *defs[0]
	bad.Name, bad.Filter = "bad", "m == 1"
	var refused *event.FilterError
	if _, err := core.Add([]*event.Def{&bad}, nil); !errors.As(err, &refused) || refused.Code != event.FilterFieldNotFound || !errors.Is(err, unix.EINVAL) {
		t.Errorf("a field that is not there: %v", err)
	}
}

// TestSelfFilterCounters has filters on events that only count: the code at the hit runs them, no record is made, and what it can
// not run is refused with the reason.
func TestSelfFilterCounters(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	def := func(text, filter string) *event.Def {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		d.Filter = filter
		return d
	}
	only := &kprobes.AddOptions{Count: true}
	evs, err := core.Add([]*event.Def{
		def("p:cnumbers "+selfPrefix+"filtered n=$arg1:s32", "n < 0 || n & 8"),
		def("p:cstrings "+selfPrefix+"filtered n=$arg1:s32 name=$arg2:gostring", `name ~ "b*" && n > 2`),
		def("r:cresults "+selfPrefix+"filtered n=$arg1:s32 v=$retval:s64", "v == 11 || n == 3"),
	}, only)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"apple", "banana", "cherry"}
	var want [3]uint64
	const calls = 60
	for i := range int32(calls) {
		n, name := i-20, names[i%3]
		if n < 0 || n&8 != 0 {
			want[0]++
		}
		if name == "banana" && n > 2 {
			want[1]++
		}
		if filtered(n, name) == 11 || n == 3 {
			want[2]++
		}
	}
	core.Poll(func(h *kprobes.Hit) {
		if h.Event.Name[0] == 'c' {
			t.Errorf("%s has a record", h.Event.Name)
		}
	})
	for i, e := range evs {
		n := core.Counts(e)
		if want[i] == 0 || n.Hits != calls || n.Filtered != calls-want[i] || n.Read+n.Lost+n.Missed != 0 {
			t.Errorf("%s: %+v, %d of %d pass", e.Name, n, want[i], calls)
		}
	}
	if _, err := core.Add([]*event.Def{def("p:ccpu "+selfPrefix+"filtered", "CPU == 0")}, only); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "tests the CPU") {
		t.Errorf("a filter that only the reader can run: %v", err)
	}
	if err := core.Remove(evs); err != nil {
		t.Error(err)
	}
	for _, e := range evs {
		if n := core.Counts(e); n.Hits != calls {
			t.Errorf("%s after its removal: %+v", e.Name, n)
		}
	}
}
