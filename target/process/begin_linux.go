package process

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
)

// A Go program that Start has made is probed before its runtime has installed its signal handlers, which take the place
// of whatever stands there. So no resident handler is installed until then. Meanwhile all loads of records are checked
// ones: where a function may run with signals blocked because hdrResident is nobody's handler, elsewhere because the word
// hdrAsks is all ones (arch.CodegenEnv.Asks).
//
// Begin sees that the runtime has its handlers, and in one stop does what an attach does to a program that runs:
//
//	1. Ours are installed in front of the runtime's, which the control block keeps. A record asks, and finds ours, or
//	   another's, as before. A tracer killed here leaves what one leaves that was killed after an attach.
//	2. hdrAsks becomes 0. A thread that has read the word before checks its loads, and then loads: nobody minds that
//	   the handler is there. One that reads it from now on makes plain loads, which the handler catches.
//
// From 2 on all is as after an attach, and holds for the same reasons. The runtime installs its handlers for SIGBUS and
// SIGSEGV once, when the first thread has its signal mask (runtime.mstartm0, after minit), before there is another thread
// and before any code of the program; os/signal takes neither from it, and the program does not itself (learnMasks). The
// functions that run earlier with the mask that the program was born with do not run again. What they call may, and reads
// the word.
//
// A child that shares the memory (vfork) reads the same word, and has handlers of its own: it runs in functions that
// may have signals blocked (codescan.SignalRoots). A fork child has a copy of the word as it was, and of the handlers. An
// exec leaves nothing of all this.

// Where the engine has a probe on runtime.main (Begins), the first thread waits there until Begin has been called: any code
// of the program's, its init functions too, finds our handlers. Without it a fault in a displaced instruction would be the
// runtime's, which does not know the detour.

// nowhere is the address of no handler.
const nowhere = ^uint64(0)

// beginPause is the time after which a Begin that failed is tried again; it doubles, up to the other.
const (
	beginPause    = 20 * time.Millisecond
	maxBeginPause = 2 * time.Second
)

// handlesBadLoads says whether handlers stand for the signals of a bad load.
func handlesBadLoads(all *[ptrace.Signals]ptrace.Sigaction) bool {
	return all[unix.SIGBUS].Handler > ptrace.SigIgnore && all[unix.SIGSEGV].Handler > ptrace.SigIgnore
}

// catches says whether the process catches these signals.
func (t *Target) catches() bool {
	st, err := t.p.Status()
	return err == nil && st.Catches(int(unix.SIGBUS)) && st.Catches(int(unix.SIGSEGV))
}

// awaitBegin has a Go program without handlers ask until Begin has seen them. Precondition: the world is stopped.
func (t *Target) awaitBegin(s *ptrace.Stopped, all *[ptrace.Signals]ptrace.Sigaction) error {
	t.begins, t.writer.Asks = t.golang != nil && !handlesBadLoads(all), 0
	if !t.begins {
		return nil
	}
	t.writer.Masks, t.writer.Handled = nil, 0 // the runtime will put handlers there itself
	if err := t.control.put(hdrResident, nowhere); err != nil {
		return err
	}
	t.writer.Asks = t.control.addr + hdrAsks
	if err := t.control.put(hdrAsks, ^uint64(0)); err != nil {
		return err
	}
	why, err := t.whyNotCall(s, "wait for its handlers (nanosleep)", waitCalls)
	t.beginWaits = why == nil
	return err
}

// Begins is runtime.main, as long as the runtime has no handlers.
func (t *Target) Begins() (place symbol.Resolved, words uint64, ok bool) {
	if !t.begins || !t.beginWaits || t.control == nil {
		return place, 0, false
	}
	m := t.Space().Main()
	fns, err := m.Image.Lookup("runtime.main")
	if err != nil || len(fns) != 1 {
		return place, 0, false
	}
	v := fns[0].Addr
	return symbol.Resolved{Module: m, Func: fns[0], Vaddr: v, Addr: m.Runtime(v)}, t.control.addr + hdrWait, true
}

// Begin sees whether the runtime of a Go program has installed its handlers meanwhile, and puts ours in front of them.
func (t *Target) Begin() (done bool) {
	if !t.begins || t.control == nil || len(t.code) == 0 || !t.catches() {
		return true
	}
	if time.Now().Before(t.tryBegin.next) {
		return false
	}
	same := t.sameMasks()
	if err := t.stopped(func(s *ptrace.Stopped) error { return t.begin(s, same) }); err != nil {
		t.tryBegin.pause = min(max(2*t.tryBegin.pause, beginPause), maxBeginPause)
		t.tryBegin.next = time.Now().Add(t.tryBegin.pause)
	}
	return !t.begins
}

// sameMasks says whether the functions that may run with signals blocked are those that were found before the program
// began: a variable may have got another function since.
func (t *Target) sameMasks() bool {
	if t.masked == nil {
		return false
	}
	now, err := codescan.SignalPath(t.Space(), t.Read)
	return err == nil && slices.Equal(slices.Sorted(maps.Keys(now)), slices.Sorted(maps.Keys(t.masked)))
}

// begin puts our handlers in front of the runtime's; same: and nobody asks any more where faults are caught.
// Precondition: the world is stopped.
func (t *Target) begin(s *ptrace.Stopped, same bool) error {
	all, err := s.Dispositions()
	if err != nil || !handlesBadLoads(all) {
		return err
	}
	f := t.faults
	if len(f.set) == 0 { // else they may be ours, of a begin that failed
		for _, sig := range ourSignals {
			f.previous[sig] = all[sig]
		}
	}
	f.need = true
	if err := f.install(s); err != nil {
		return err
	}
	if same {
		if err := t.control.put(hdrAsks, 0); err != nil {
			return err
		}
		t.writer.Asks = 0
	}
	t.begins = false
	return nil
}
