package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// A thread under a seccomp filter may end by a system call that the filter forbids. Filters come at
// any time, and are never taken off. The engine probes the functions by which programs take them on
// (FilterCalls); such a probe counts up the word hdrQuiet before the filter is there, and while that
// is not 0 generated code makes no system call (arch.CodegenEnv.Quiet). CheckFilters sets the word back
// if all threads' filters permit all calls that generated code makes.
//
// What is not seen: a filter that is taken on by an inline system call, or by a function of another
// name. A process that was forked counts in its own memory, and stays quiet: nobody looks there.

// prSetSeccomp and seccompNr, and the operations of seccomp(2) that add a filter.
const (
	prSetSeccomp     = 22  // PR_SET_SECCOMP
	prctlNr          = 157 // SYS_prctl
	seccompNr        = 317 // SYS_seccomp
	seccompSetStrict = 0   // SECCOMP_SET_MODE_STRICT
	seccompSetFilter = 1   // SECCOMP_SET_MODE_FILTER
)

// filterWays gives the values of the registers with the number of a system call and its first argument
// that take on a filter.
func filterWays(nr, arg fetch.Reg) [][]arch.Value {
	return [][]arch.Value{
		{{Reg: nr, Bits: prctlNr}, {Reg: arg, Bits: prSetSeccomp}},
		{{Reg: nr, Bits: seccompNr}, {Reg: arg, Bits: seccompSetStrict}},
		{{Reg: nr, Bits: seccompNr}, {Reg: arg, Bits: seccompSetFilter}},
	}
}

// argOf is the register of the nth integer argument, of a function of Go or of C.
func argOf(goProgram bool, n int) fetch.Reg {
	b, err := native.Arch.ABI(goProgram, false).Arg(n)
	if err != nil {
		panic(err) // every convention has registers for two arguments
	}
	return b.Reg
}

// installers are the functions by which programs take on filters: of C libraries, and the one by
// which Go programs make system calls (by its names since Go 1.19).
var installers = []struct {
	name string
	ways [][]arch.Value
}{
	{"prctl", [][]arch.Value{{{Reg: argOf(false, 1), Bits: prSetSeccomp}}}},
	{"syscall", filterWays(argOf(false, 1), argOf(false, 2))},
	{"internal/runtime/syscall/linux.Syscall6", filterWays(argOf(true, 1), argOf(true, 2))},
	{"internal/runtime/syscall.Syscall6", filterWays(argOf(true, 1), argOf(true, 2))},
	{"runtime/internal/syscall.Syscall6", filterWays(argOf(true, 1), argOf(true, 2))},
}

// FilterCalls finds the functions by which the program may take on a seccomp filter.
func (t *Target) FilterCalls() []target.FilterCall {
	var out []target.FilterCall
	seen := map[uint64]bool{}
	for _, m := range t.Space().Modules() {
		for _, in := range installers {
			for _, fn := range m.Image.All(in.name) {
				at := m.Runtime(fn.Addr)
				if seen[at] || fn.Addr == 0 {
					continue
				}
				seen[at] = true
				place := symbol.Resolved{Module: m, Func: fn, Vaddr: fn.Addr, Addr: at}
				out = append(out, target.FilterCall{Place: place, Ways: in.ways})
				t.filters.calls = append(t.filters.calls, interval.Range{Start: at, End: at + max(fn.Size, 1)})
			}
		}
	}
	return out
}

// filters is what a target knows of the process's seccomp filters.
type filters struct {
	calls []interval.Range // the functions that take them on
	seen  uint64           // the value of hdrQuiet that was judged
	why   error            // why generated code makes no system call; nil where it may make some, and before the filters were judged
}

// Filtered says why generated code makes no system call any more, and nil while it may.
func (t *Target) Filtered() error { return t.filters.why }

// CheckFilters sees whether the program has taken on a filter, and whether generated code may go on
// making system calls under it. first: the probes on FilterCalls have just been armed, and a filter may
// have come before them. The error is why it may not; it is told once.
func (t *Target) CheckFilters(first bool) error {
	if t.control == nil {
		return nil
	}
	n, err := t.control.get(hdrQuiet)
	if err != nil {
		return err
	}
	if first && t.held.Load() == nil { // in a stop each thread is asked, which is faster
		if has, err := t.anyFilter(); !has || err != nil {
			return err
		}
	} else if !first && n == t.filters.seen {
		return nil
	}
	return t.stopped(t.judgeFilters)
}

// anyFilter says whether a thread is under a filter.
func (t *Target) anyFilter() (bool, error) {
	tids, err := t.p.Tasks()
	if err != nil {
		return false, err
	}
	for _, tid := range tids {
		if st, err := t.p.TaskStatus(tid); err == nil && st.Seccomp != procfs.SeccompNone {
			return true, nil
		}
	}
	return false, nil
}

// judgeFilters looks at the filters that there are. Precondition: the world is stopped.
func (t *Target) judgeFilters(s *ptrace.Stopped) error {
	if between, err := t.betweenFilters(s); between || err != nil {
		return err // the filter is about to come
	}
	n, err := t.control.get(hdrQuiet)
	if err != nil {
		return err
	}
	sleeps, err := t.whyNotCall(s, "wait for an object to be looked at (nanosleep)", waitCalls)
	if err == nil && sleeps != nil {
		err = t.control.put(hdrWait+8, waitsNoMore)
	}
	if err != nil {
		return err
	}
	why, err := t.whyNotCall(s, "make the system calls of probes", t.hitCalls())
	if err != nil {
		return err
	}
	if why == nil {
		t.filters.seen, t.filters.why = 0, nil
		return t.control.put(hdrQuiet, 0)
	}
	if n == 0 {
		n = 1
		err = t.control.put(hdrQuiet, n)
	}
	t.filters.seen = n
	t.filters.why = fmt.Errorf("process %d has taken on a seccomp filter: arguments that lie in memory are not read any more ((fault), 0), and handlers not called: %w", t.p.PID(), why)
	return errors.Join(err, t.filters.why)
}

// waitCalls is what a thread does that waits in the loader.
var waitCalls = []ptrace.CallData{ptrace.CallOf(unix.SYS_NANOSLEEP, [6]uint64{}, 0)}

// hitCalls are the system calls that generated code makes at hits, as things stand.
func (t *Target) hitCalls() []ptrace.CallData {
	var out []ptrace.CallData
	if !t.writer.PlainLoads {
		out = append(out, maskCalls...)
	}
	if t.writer.Resident != 0 {
		out = append(out, actionCalls...)
	}
	if t.writer.Go == nil && !t.writer.NoTID {
		out = append(out, tidCalls...)
	}
	if !t.writer.NoName {
		out = append(out, nameCalls...)
	}
	if t.mail != nil {
		out = append(out, gateCalls...)
	}
	return out
}

// betweenFilters says whether a thread is in a function that takes on filters, and may have counted
// one that is not there yet: what the kernel tells of its filters is no answer then. One that is in
// another system call there is not. Precondition: the world is stopped.
func (t *Target) betweenFilters(s *ptrace.Stopped) (bool, error) {
	in := t.filters.calls
	for site := range t.control.sites {
		for _, r := range t.filters.calls {
			if site.Addr-r.Start < r.Size() {
				in = append(in[:len(in):len(in)], interval.Range{Start: site.Detour.Addr, End: site.Detour.Addr + uint64(len(site.Detour.Code))})
			}
		}
	}
	for _, th := range s.Threads() {
		nr, calls := th.InSyscall()
		if other := calls && nr != prctlNr && nr != seccompNr; !other && interval.AnyContains(in, th.ResumePC()) {
			return true, nil
		}
	}
	found := false
	err := t.savedContexts(s, t.golang != nil, func(v uint64) { found = found || interval.AnyContains(in, v) })
	return found, err
}
