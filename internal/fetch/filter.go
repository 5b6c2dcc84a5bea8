package fetch

import (
	"cmp"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
)

// Filter is a condition on the values of a program, as a list of steps. It does not change once it is made.
type Filter struct {
	Text  string
	Steps []FilterStep // the first begins
}

// FilterStep is a test, and where to go on: at another step, or Pass, or Fail.
type FilterStep struct {
	Test       *event.FilterTest
	Then, Else int
	// Parts are what a string that passes has: parts of symbol.GlobParts, if there are several with anything between them. Turned: it
	// is what does not pass that has them. nil: the test is none of a string.
	Parts  [][]symbol.ByteSet
	Turned bool
}

// The ends of a filter.
const (
	Pass = -1
	Fail = -2
)

// FilterEnv is what a filter may name beside the program's arguments. The zero value has nothing.
type FilterEnv struct {
	// Functions finds a function by its name, or by an address in it where the name is "".
	Functions func(name string, addr uint64) (start, end uint64, ok bool)
	// Comm: every record has the thread's name.
	Comm bool
	// Synthetic: the event is one, and stands at no place.
	Synthetic bool
}

// Filter compiles a filter of an event that records the program. Its errors are *event.FilterError.
func (p *Program) Filter(text string, env FilterEnv) (*Filter, error) {
	f, err := event.ParseFilter(text, &filterScope{p, env})
	if err != nil {
		return nil, err
	}
	c := &Filter{Text: text}
	c.term(f.Root, false, Pass, Fail)
	for i, j := 0, len(c.Steps)-1; i < j; i, j = i+1, j-1 { // they were made from the last to the first
		c.Steps[i], c.Steps[j] = c.Steps[j], c.Steps[i]
	}
	for i := range c.Steps {
		s := &c.Steps[i]
		s.Then, s.Else = turned(s.Then, len(c.Steps)), turned(s.Else, len(c.Steps))
	}
	return c, nil
}

func turned(at, n int) int {
	if at < 0 {
		return at
	}
	return n - 1 - at
}

// term adds the steps of a term, the last first, and gives the one that begins it.
func (f *Filter) term(t *event.FilterTerm, not bool, pass, fail int) int {
	if t.Not {
		not = !not
	}
	if t.Kind == event.TermTest {
		if not {
			pass, fail = fail, pass
		}
		f.Steps = append(f.Steps, newStep(t.Test, pass, fail))
		return len(f.Steps) - 1
	}
	all := (t.Kind == event.TermAnd) != not
	next := fail
	if all {
		next = pass
	}
	for i := len(t.Terms) - 1; i >= 0; i-- {
		if all {
			next = f.term(t.Terms[i], not, next, fail)
		} else {
			next = f.term(t.Terms[i], not, pass, next)
		}
	}
	return next
}

func newStep(t *event.FilterTest, pass, fail int) FilterStep {
	s := FilterStep{Test: t, Then: pass, Else: fail}
	switch t.Kind {
	case event.TestGlob:
		s.Parts, s.Turned = symbol.GlobParts(t.Str), t.Not
	case event.TestString:
		s.Parts, s.Turned = symbol.Literal(t.Str), t.Op == event.FilterNE || t.Op == event.FilterGlob && t.Not
	}
	return s
}

// filterScope has the fields of a program's records.
type filterScope struct {
	p   *Program
	env FilterEnv
}

// Function finds a function.
func (s *filterScope) Function(name string, addr uint64) (start, end uint64, ok bool) {
	if s.env.Functions == nil {
		return 0, 0, false
	}
	return s.env.Functions(name, addr)
}

// Field finds an argument, or a field that every record has.
func (s *filterScope) Field(name string) (event.FilterField, bool) {
	for i := range s.p.Args {
		if a := &s.p.Args[i]; a.Name == name {
			return a.field(i)
		}
	}
	ip, ret := "__probe_ip", ""
	if s.p.Return {
		ip, ret = "__probe_func", "__probe_ret_ip"
	}
	switch name {
	case ip:
		return event.FilterField{Kind: event.FieldIP, Size: 8}, !s.env.Synthetic
	case ret:
		return event.FilterField{Kind: event.FieldRet, Size: 8}, ret != ""
	case "common_pid":
		return event.FilterField{Kind: event.FieldPID, Size: 4, Signed: true}, true
	case "CPU", "cpu", "common_cpu":
		return event.FilterField{Kind: event.FieldCPU, Size: 4, Signed: true}, true
	case "COMM", "comm":
		return event.FilterField{Kind: event.FieldComm, Text: true}, s.env.Comm
	case "common_type":
		return event.FilterField{Kind: event.FieldZero, Size: 2}, true
	case "common_flags", "common_preempt_count":
		return event.FilterField{Kind: event.FieldZero, Size: 1}, true
	}
	return event.FilterField{}, false
}

// field is the argument as a filter sees it; false: a filter can not test it.
func (a *Arg) field(i int) (event.FilterField, bool) {
	f := event.FilterField{Kind: event.FieldArg, Arg: i}
	switch {
	case a.Count > 0:
	case a.Type.Kind == event.SymStr, a.Store == StoreSpan:
		return f, false
	case a.Type.IsString() || a.Store == StoreComm || a.Store == StoreNone:
		f.Text = true
	default:
		f.Size, f.Signed = a.Type.Size, a.Type.Kind == event.Signed
	}
	return f, true
}

// InCode says whether generated code can run the filter: all tests compare numbers and strings that it has at the hit.
func (f *Filter) InCode(p *Program) bool { return f.NotInCode(p) == "" }

// NotInCode says which test generated code can not run, "" if it can run all (InCode).
func (f *Filter) NotInCode(p *Program) string {
	for i := range f.Steps {
		t := f.Steps[i].Test
		switch {
		case t.Kind == event.TestCPUs, t.Field.Kind == event.FieldCPU:
			return "it tests the CPU"
		case t.Field.Kind == event.FieldZero:
		case t.Field.Kind == event.FieldIP:
			if p.Return { // the function, and the code stands at its exits
				return "it tests the place of a return"
			}
		case t.Field.Kind == event.FieldArg:
			if a := &p.Args[t.Field.Arg]; !a.testable(t) {
				return fmt.Sprintf("it tests %s, which is not a number or a string that the code has at the hit", a.Name)
			}
		default:
			return "it tests the thread or what else only a record has"
		}
	}
	return ""
}

// testable says whether generated code can test the argument.
func (a *Arg) testable(t *event.FilterTest) bool {
	if t.Field.Text {
		return a.Store == StoreString || a.Store == StoreCounted
	}
	return a.Store == StoreValue && a.Type.Width == 0
}

// loads says whether the value takes a load.
func (a *Arg) loads() bool {
	return len(a.Derefs) > 0 || a.Base.Kind == BaseStack || a.Store == StoreCounted || slices.ContainsFunc(a.Checks, Check.Loads)
}

// Comm says whether a test asks for the thread's name.
func (f *Filter) Comm() bool {
	return slices.ContainsFunc(f.Steps, func(s FilterStep) bool { return s.Test.Field.Kind == event.FieldComm })
}

// Loads says whether a test of the filter takes a load that may fault.
func (f *Filter) Loads(p *Program) bool {
	for i := range f.Steps {
		if t := f.Steps[i].Test; t.Field.Kind == event.FieldArg && p.Args[t.Field.Arg].loads() {
			return true
		}
	}
	return false
}

// FilterHit is what a filter tests beside the values of a record.
type FilterHit struct {
	IP, Ret, PID, CPU uint64
	Comm              string
}

// Match says whether a record passes.
func (f *Filter) Match(values []Value, h *FilterHit) bool {
	at := 0
	for at >= 0 {
		s := &f.Steps[at]
		if holds(s.Test, values, h) {
			at = s.Then
		} else {
			at = s.Else
		}
	}
	return at == Pass
}

func holds(t *event.FilterTest, values []Value, h *FilterHit) bool {
	switch t.Field.Kind {
	case event.FieldIP:
		return CompareNumber(t, h.IP)
	case event.FieldRet:
		return CompareNumber(t, h.Ret)
	case event.FieldPID:
		return CompareNumber(t, h.PID)
	case event.FieldCPU:
		return CompareNumber(t, h.CPU)
	case event.FieldComm:
		return compareString(t, h.Comm)
	case event.FieldZero:
		return CompareNumber(t, 0)
	}
	v := &values[t.Field.Arg]
	switch {
	case v.Unknown || v.Fault:
		return false
	case t.Field.Text:
		return compareString(t, string(v.Str))
	}
	return CompareNumber(t, v.Num)
}

func compareString(t *event.FilterTest, s string) bool {
	switch {
	case t.Kind == event.TestGlob:
		return symbol.MatchGlob(t.Str, s) != t.Not
	case t.Op == event.FilterGlob:
		return (s == t.Str) != t.Not
	}
	return (s == t.Str) == (t.Op == event.FilterEQ)
}

// CompareNumber says whether a number passes a test; of a field that has no 8 bytes its upper ones count for nothing.
func CompareNumber(t *event.FilterTest, v uint64) bool {
	switch t.Kind {
	case event.TestRange:
		return (t.Num <= v && v < t.End) == (t.Op == event.FilterEQ)
	case event.TestCPUs:
		return compareCPUs(t, v)
	}
	shift := 64 - 8*t.Field.Size
	a, b := v<<shift, t.Num<<shift
	c := cmp.Compare(a, b)
	if t.Field.Signed {
		c = cmp.Compare(int64(a), int64(b))
	}
	switch t.Op {
	case event.FilterEQ:
		return c == 0
	case event.FilterNE:
		return c != 0
	case event.FilterLT:
		return c < 0
	case event.FilterLE:
		return c <= 0
	case event.FilterGT:
		return c > 0
	case event.FilterGE:
		return c >= 0
	}
	return a&b != 0
}

// compareCPUs compares a number with a list: == and != mean that it is the only one of the list, as in the kernel.
func compareCPUs(t *event.FilterTest, v uint64) bool {
	in, n := v < uint64(len(t.CPUs)) && t.CPUs[v], 0
	for _, c := range t.CPUs {
		if c {
			n++
		}
	}
	switch t.Op {
	case event.FilterEQ:
		return n == 1 && in
	case event.FilterNE:
		return n != 1 || !in
	}
	return in
}
