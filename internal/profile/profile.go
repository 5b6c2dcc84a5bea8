// Package profile makes profiles of histograms that have a stack among their keys: in the form of pprof, and folded. It
// knows nothing of how hits are counted, nor of who asks.
package profile

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/symbol"
)

// Names says what lies at an address of the target.
type Names interface {
	// Symbol is the function there.
	Symbol(addr uint64) (fetch.Sym, bool)
	// Lines are the lines of source there, of the innermost inlined call first; none where nobody knows.
	Lines(addr uint64) []fetch.Line
}

// Mapping is a file that the target has mapped at [Start, End), of which Start is byte Offset of the file.
type Mapping struct {
	Start, End, Offset uint64
	File, BuildID      string
}

// Mappings are the files of an address space, as far as there is code in them.
func Mappings(space *symbol.Space) (out []Mapping) {
	for _, m := range space.Modules() {
		for _, s := range m.Image.Segments() {
			if s.Exec {
				out = append(out, Mapping{Start: m.Runtime(s.Vaddr), End: m.Runtime(s.Vaddr + s.Memsz), Offset: s.Off, File: m.Image.Path(), BuildID: m.Image.BuildID()})
			}
		}
	}
	return out
}

// Source is what a profile is made of.
type Source struct {
	Hist     *hit.Histogram
	Def      *event.Hist
	Names    Names
	Mappings []Mapping
	// Unit is that of a value of the definition (Def.Vals) by its name: "count", "nanoseconds", "bytes".
	Unit     func(field string) string
	End      time.Time
	Duration time.Duration
	// Returned is the address of the function whose returns have been counted, which is on no stack then; 0: there is none.
	Returned uint64
}

// stack gives the addresses of a stack, the innermost first.
func (s *Source) stack(frames []fetch.StackFrame) (at []uint64) {
	if s.Returned != 0 {
		at = append(at, s.Returned)
	}
	for _, f := range frames {
		at = append(at, f.At())
	}
	return at
}

// hits is the type of the first value.
const hits = "hits"

// PProf makes a profile as pprof reads it (github.com/google/pprof, proto/profile.proto): for each stack the hits, and the sums of the values. Other
// keys are labels.
func (s *Source) PProf() *profile.Profile {
	b := &builder{
		s: s, p: &profile.Profile{TimeNanos: s.End.UnixNano(), DurationNanos: int64(s.Duration)},
		locations: map[uint64]*profile.Location{}, functions: map[fetch.Line]*profile.Function{},
	}
	b.p.SampleType = []*profile.ValueType{{Type: hits, Unit: "count"}}
	for _, v := range s.Def.Vals {
		b.p.SampleType = append(b.p.SampleType, &profile.ValueType{Type: v.Name, Unit: s.Unit(v.Name)})
	}
	b.p.DefaultSampleType = b.p.SampleType[len(b.p.SampleType)-1].Type
	for i, m := range s.Mappings {
		b.p.Mapping = append(b.p.Mapping, &profile.Mapping{
			ID: uint64(i + 1), Start: m.Start, Limit: m.End, Offset: m.Offset, File: m.File, BuildID: m.BuildID, HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
		})
	}
	stack := s.Hist.StackKey()
	s.Hist.Stacks(func(e hit.HistEntry, frames []fetch.StackFrame) {
		sample := &profile.Sample{Value: []int64{int64(e.Hits)}}
		for _, v := range e.Sums {
			sample.Value = append(sample.Value, int64(v))
		}
		for _, at := range s.stack(frames) {
			sample.Location = append(sample.Location, b.location(at))
		}
		for i, k := range e.Keys {
			if i != stack {
				label(sample, s.Def.Keys[i].Name, k)
			}
		}
		b.p.Sample = append(b.p.Sample, sample)
	})
	return b.p
}

// label adds a key to a sample.
func label(s *profile.Sample, name string, key any) {
	switch k := key.(type) {
	case uint64:
		s.NumLabel = with(s.NumLabel, name, int64(k))
	case int64:
		s.NumLabel = with(s.NumLabel, name, k)
	case string:
		s.Label = with(s.Label, name, k)
	}
}

func with[V any](m map[string][]V, name string, v V) map[string][]V {
	if m == nil {
		m = map[string][]V{}
	}
	m[name] = append(m[name], v)
	return m
}

type builder struct {
	s         *Source
	p         *profile.Profile
	locations map[uint64]*profile.Location
	functions map[fetch.Line]*profile.Function // by File and Func
}

// location is that of an address.
func (b *builder) location(addr uint64) *profile.Location {
	if l := b.locations[addr]; l != nil {
		return l
	}
	l := &profile.Location{ID: uint64(len(b.p.Location) + 1), Address: addr}
	for i, m := range b.s.Mappings {
		if m.Start <= addr && addr < m.End {
			l.Mapping = b.p.Mapping[i]
		}
	}
	sym, known := b.s.Names.Symbol(addr)
	for _, line := range b.s.Names.Lines(addr) {
		name, system := line.Func, line.Func
		if name == "" && known {
			name, system = frameName(sym), sym.Name
		}
		l.Line = append(l.Line, profile.Line{Function: b.function(name, system, line.File), Line: int64(line.Line)})
	}
	if len(l.Line) == 0 && known {
		l.Line = []profile.Line{{Function: b.function(frameName(sym), sym.Name, "")}}
	}
	b.locations[addr] = l
	b.p.Location = append(b.p.Location, l)
	return l
}

func (b *builder) function(name, system, file string) *profile.Function {
	key := fetch.Line{File: file, Func: name}
	f := b.functions[key]
	if f == nil {
		f = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: name, SystemName: system, Filename: file}
		b.functions[key] = f
		b.p.Function = append(b.p.Function, f)
	}
	return f
}

func frameName(s fetch.Sym) string {
	if s.Pretty != "" {
		return s.Pretty
	}
	return s.Name
}

// Folded writes a line for each stack of functions: other keys as NAME:VALUE, then the functions from the outermost to the probed one, with semicolons between them, a
// blank, and the sum of the first value, or the hits if there is none. Calls that were inlined have frames of their own.
func (s *Source) Folded(w io.Writer) error {
	stack, sums := s.Hist.StackKey(), map[string]uint64{}
	var order []string
	s.Hist.Stacks(func(e hit.HistEntry, frames []fetch.StackFrame) {
		var names []string
		for i, k := range e.Keys {
			if i != stack {
				names = append(names, fmt.Sprintf("%s:%v", s.Def.Keys[i].Name, k))
			}
		}
		for _, at := range slices.Backward(s.stack(frames)) {
			names = append(names, s.frames(at)...)
		}
		value := e.Hits
		if len(e.Sums) > 0 {
			value = e.Sums[0]
		}
		line := foldable.Replace(strings.Join(names, "\x00"))
		if _, ok := sums[line]; !ok {
			order = append(order, line)
		}
		sums[line] += value
	})
	out := bufio.NewWriter(w)
	for _, line := range order {
		fmt.Fprintf(out, "%s %d\n", line, sums[line])
	}
	return out.Flush()
}

// foldable keeps what names have from being taken for what is between them.
var foldable = strings.NewReplacer(";", ":", "\n", " ", "\x00", ";")

// frames are the names of the functions at an address, the outermost first.
func (s *Source) frames(addr uint64) (names []string) {
	name := fmt.Sprintf("0x%x", addr)
	if sym, ok := s.Names.Symbol(addr); ok {
		name = frameName(sym)
	}
	lines := s.Names.Lines(addr)
	for i := len(lines) - 1; i >= 0; i-- {
		if fn := lines[i].Func; fn != "" {
			names = append(names, fn)
		}
	}
	return append([]string{name}, names...)
}
