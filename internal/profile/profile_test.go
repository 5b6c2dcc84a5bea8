package profile

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// names are functions of 16 bytes each.
type names struct{}

func (names) Symbol(addr uint64) (fetch.Sym, bool) {
	fn := []string{"main", "a;b", "leaf"}
	if i := addr >> 4; i < uint64(len(fn)) {
		return fetch.Sym{Name: fn[i], Off: addr & 15, Size: 16}, true
	}
	return fetch.Sym{}, false
}

func (names) Lines(addr uint64) []fetch.Line {
	if addr>>4 == 1 {
		return []fetch.Line{{File: "x.c", Line: 7, Func: "inner"}, {File: "x.c", Line: 9}}
	}
	return nil
}

// source is a histogram of two stacks that differ in an address only, and of one with an address that has no name; by thread.
func source(t *testing.T) *Source {
	t.Helper()
	def, err := event.ParseHist("keys=common_pid,common_stacktrace")
	if err != nil {
		t.Fatal(err)
	}
	h, err := hit.NewHistogram(def, &fetch.Program{})
	if err != nil {
		t.Fatal(err)
	}
	var entries []fetch.HistEntry
	for _, s := range []struct {
		at   []uint64
		hits uint64
	}{{[]uint64{0x20, 0x15, 0x05}, 3}, {[]uint64{0x20, 0x17, 0x05}, 2}, {[]uint64{0x20, 0x101}, 1}} {
		frames := []fetch.StackFrame{{PC: s.at[0], Interrupted: true}}
		for _, a := range s.at[1:] {
			frames = append(frames, fetch.StackFrame{PC: a})
		}
		entries = append(entries, fetch.HistEntry{Keys: []uint64{5, 0}, Callers: frames, Hits: s.hits})
	}
	h.Load(entries, 0)
	return &Source{
		Hist: h, Def: def, Names: names{}, Mappings: []Mapping{{Start: 0, End: 0x30, File: "/prog"}},
		Unit: func(string) string { return "count" }, End: time.Unix(5, 0), Duration: time.Second,
	}
}

func TestFolded(t *testing.T) {
	var b bytes.Buffer
	if err := source(t).Folded(&b); err != nil {
		t.Fatal(err)
	}
	want := "common_pid:5;0x100;leaf 1\ncommon_pid:5;main;a:b;inner;leaf 5\n"
	if got := b.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPProf(t *testing.T) {
	p := source(t).PProf()
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	sum := map[string]int64{}
	for _, s := range p.Sample {
		var fns []string
		for _, l := range s.Location {
			for _, line := range l.Line {
				fns = append(fns, line.Function.Name)
			}
		}
		if s.NumLabel["common_pid"][0] != 5 {
			t.Errorf("labels %v", s.NumLabel)
		}
		sum[strings.Join(fns, " ")] += s.Value[0]
	}
	if len(sum) != 2 || sum["leaf inner a;b main"] != 5 || sum["leaf"] != 1 {
		t.Errorf("%v", sum)
	}
	for _, l := range p.Location {
		if l.Address == 0x14 && (len(l.Line) != 2 || l.Line[0].Line != 7 || l.Line[1].Line != 9 || l.Line[1].Function.Filename != "x.c" || l.Mapping != p.Mapping[0]) {
			t.Errorf("%+v", l)
		}
		if l.Address == 0x100 && l.Mapping != nil {
			t.Errorf("%+v", l)
		}
	}
	if p.TimeNanos != 5e9 || p.DurationNanos != 1e9 {
		t.Errorf("%+v", p)
	}
}
