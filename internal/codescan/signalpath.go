package codescan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// SignalPath finds the functions of a Go program that may run while the thread's signals are blocked, those that
// faults and breakpoints send among them: no breakpoint may stand in them, because a thread that hits one then is
// killed by the kernel, whatever handler there is (force_sig_fault, signal(7)), and a bad pointer that is
// read there is no better. The result gives for the run-time address of each function's entry how it is reached.
//
// It is the call graph of the program itself from SignalRoots on, cut where SignalCuts and
// SignalEdges say why. Followed are direct calls and jumps out of a function; functions whose
// address a function takes, as systemstack's arguments; func values without variables; and
// what the variables hold now through which SignalVariables call, such as the runtime's
// pointers to C code; and SignalIndirect.
// Only what is reached is read and decoded. Code is read from the file, so that probes in
// it do not matter; read reads the process's memory.
//
// Not told: C libraries in files of their own, which a thread passes through while it is
// made with signals blocked; and a traceback function in C (runtime.SetCgoTraceback).
func SignalPath(sp *symbol.Space, read func(addr uint64, buf []byte) error) (map[uint64]string, error) {
	main := sp.Main()
	if main == nil {
		return nil, errors.New("signal path: the program's own file is not known")
	}
	w := &walker{
		mod: main, read: read, segments: main.Image.Segments(),
		from: map[uint64]*symbol.Func{}, why: map[uint64]string{},
	}
	w.begin()
	if len(w.todo) == 0 {
		return nil, w.noRoots()
	}
	for i := 0; i < len(w.todo); i++ { // breadth first: the ways are the shortest
		if err := w.follow(w.todo[i]); err != nil {
			return nil, err
		}
	}
	return w.why, nil
}

// walker walks the call graph.
type walker struct {
	mod      *symbol.Module
	read     func(addr uint64, buf []byte) error
	segments []symbol.Segment
	todo     []*symbol.Func
	from     map[uint64]*symbol.Func // link-time entry to the caller by which it was reached first
	why      map[uint64]string       // run-time entry to how it is reached
}

// begin enters the roots.
func (w *walker) begin() {
	for _, r := range SignalRoots {
		for _, fn := range w.named(r.Name) {
			w.enter(fn, nil, r.Why)
		}
	}
}

// noRoots says why none of the roots was found.
func (w *walker) noRoots() error {
	why := errors.Join(w.mod.Image.Problems()...)
	if why == nil {
		why = errors.New("it lists no functions")
	}
	return errno.Errorf(unix.EOPNOTSUPP, "signal path: the runtime's functions are not found in %s: %w", w.mod.Image.Path(), why)
}

// named gives the functions of a name; ABI wrappers are found where they are called.
func (w *walker) named(name string) []*symbol.Func {
	var out []*symbol.Func
	for _, fn := range w.mod.Image.All(name) {
		if fn.Name == name {
			out = append(out, fn)
		}
	}
	return out
}

// enter notes a function as reached from another, or as a root with a reason.
func (w *walker) enter(fn, caller *symbol.Func, why string) {
	if _, ok := w.from[fn.Addr]; ok || !fn.Candidate() {
		return
	}
	if caller != nil {
		cut := func(e SignalEdge) bool { return e.Caller == caller.Name && e.Callee == fn.Name }
		if has(SignalCuts, fn.Name) || slices.ContainsFunc(SignalEdges, cut) {
			return
		}
		why = w.chain(caller)
	}
	w.from[fn.Addr] = caller
	w.why[w.mod.Runtime(fn.Addr)] = why
	if !has(SignalLeaves, fn.Name) {
		w.todo = append(w.todo, fn)
	}
}

// maxChain bounds the callers that an answer names.
const maxChain = 4

// chain names a function and its callers, the innermost first.
func (w *walker) chain(fn *symbol.Func) string {
	s := "called by " + fn.String()
	for n := 1; n < maxChain; n++ {
		if fn = w.from[fn.Addr]; fn == nil {
			return s
		}
		s += " ← " + fn.String()
	}
	return s + " ← …"
}

// follow enters all that a function calls. Of code in C the end is not always known, and
// there may be data in it: it is followed up to there.
func (w *walker) follow(fn *symbol.Func) error {
	code := make([]byte, fn.Size)
	if err := w.mod.Image.ReadAt(fn.Addr, code); err != nil {
		return fmt.Errorf("signal path: %s: %w", fn, err)
	}
	err := native.Refs(code, fn.Addr, func(r arch.Ref) { w.reach(fn, r) })
	if err != nil && strings.HasPrefix(fn.Name, "runtime.") {
		return fmt.Errorf("signal path: %s%w", fn, err)
	}
	for _, c := range SignalIndirect {
		if c.Caller == fn.Name {
			w.enterAll(c.Callees, fn)
		}
	}
	return nil
}

// enterAll enters the functions that have these names.
func (w *walker) enterAll(names []string, caller *symbol.Func) {
	for _, name := range names {
		for _, fn := range w.named(name) {
			w.enter(fn, caller, "")
		}
	}
}

// reach enters what a direct branch goes to, or what an operand means: a function whose
// address is taken, a func value, or a variable that holds either.
func (w *walker) reach(fn *symbol.Func, r arch.Ref) {
	switch {
	case r.Kind == arch.RefBranch:
		if !fn.Contains(r.To) {
			w.enterAt(fn, r.To)
		}
	case r.Kind == arch.RefAddress && w.mod.Image.InText(r.To):
		w.enterEntry(fn, r.To)
	case r.Kind == arch.RefAddress:
		w.enterValue(fn, r.To)
	case r.Kind == arch.RefLoad && slices.Contains(SignalVariables, fn.Name):
		if v, ok := w.word(r.To); ok && !w.enterEntry(fn, v) {
			w.enterValue(fn, v)
		}
	}
}

// enterAt enters the function that holds an address.
func (w *walker) enterAt(caller *symbol.Func, t uint64) {
	if callee, _, ok := w.mod.Image.At(t); ok {
		w.enter(callee, caller, "")
	}
}

// enterEntry enters the function that begins at an address, if one does.
func (w *walker) enterEntry(caller *symbol.Func, t uint64) bool {
	callee, off, ok := w.mod.Image.At(t)
	if !ok || off != 0 {
		return false
	}
	w.enter(callee, caller, "")
	return true
}

// enterValue enters the function of a func value, whose first word is its address. Those
// without variables are constants; a variable's number may look like an address, but not
// like one in a position-independent program.
func (w *walker) enterValue(caller *symbol.Func, t uint64) {
	if s, ok := w.segment(t); !ok || s.Write && w.mod.Image.Type() == symbol.TypeExec {
		return
	}
	if v, ok := w.word(t); ok {
		w.enterEntry(caller, v)
	}
}

// word reads a word of the program's data that is an address.
func (w *walker) word(t uint64) (v uint64, ok bool) {
	var b [8]byte
	if _, ok := w.segment(t); !ok || t%8 != 0 || w.read(w.mod.Runtime(t), b[:]) != nil {
		return 0, false
	}
	return w.mod.Linktime(binary.LittleEndian.Uint64(b[:])), true
}

// segment gives the segment of the program's own file that holds an address.
func (w *walker) segment(t uint64) (symbol.Segment, bool) {
	i := slices.IndexFunc(w.segments, func(s symbol.Segment) bool { return s.Contains(t) })
	if i < 0 {
		return symbol.Segment{}, false
	}
	return w.segments[i], true
}
