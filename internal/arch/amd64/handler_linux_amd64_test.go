package amd64

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// Dispositions of the program's own in testdata/detourexec.c.
const (
	appDefault = iota
	appHandled
	appOnce
	appIgnored
)

// faulting reads through RDI in the second instruction of the bytes that a jump takes:
//
//	0 push %rsi   1 mov (%rdi),%rax   4 pop %rsi   5 add %rax,%rsi   8 ret
const (
	faulting   = "56 488b07 5e 4801c6 c3"
	faultingAt = 1
)

func (a *arena) faultingRuns(n int, rdi uint64) {
	a.probe(hexBytes(a.t, faulting), map[uint64][]arch.ProbeOp{0: {{Event: 1, Count: true}}}, arch.Policy{Force: arch.TacticJump})
	a.handler()
	a.ctl.Hole, a.ctl.Actions = arenaHole, arenaActions
	a.put64(arenaData+8, 0x1234567)
	for i := range uint64(n) {
		a.add([16]uint64{RSP: arenaStack, RDI: rdi, RSI: 77 + i, RAX: i}, 0x202)
	}
}

// TestHandlerRepairs has the program's own handler repair a fault in a displaced
// instruction: it must see the original address, and the copy must go on.
func TestHandlerRepairs(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	a.faultingRuns(3, arenaHole+0x123)
	a.ctl.App, a.ctl.Repair = appHandled, arenaData+8
	a.run()
	if a.ctl.Handled != 6 || a.ctl.FaultPC != arenaProbed+faultingAt || a.ctl.FaultAddr != arenaHole+0x123 || a.ctl.Alt != 1 {
		t.Errorf("handled %d, at %#x, address %#x, alternate stack %d", a.ctl.Handled, a.ctl.FaultPC, a.ctl.FaultAddr, a.ctl.Alt)
	}
	if n := a.counted(1, 0); n != 3 || a.ctl.Did != 3 {
		t.Errorf("%d hits in %d runs", n, a.ctl.Did)
	}
}

// TestHandlerTrapFlag: an instruction faults that is being stepped, when its breakpoint has been
// removed already. The trap flag is ours, and neither the program's handler nor what runs after it has it.
func TestHandlerTrapFlag(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	a.probe(hexBytes(t, "488b07 4801c6 c3"), map[uint64][]arch.ProbeOp{0: {{Event: 1, Count: true}}}, arch.Policy{Force: arch.TacticStep})
	a.handler()
	a.put64(arenaTables+24, 0) // no breakpoint is in the table any more
	a.ctl.Hole, a.ctl.Actions, a.ctl.App, a.ctl.Repair = arenaHole, arenaActions, appHandled, arenaData+8
	a.add([16]uint64{RSP: arenaStack, RDI: arenaHole + 0x123, RSI: 77}, 0x202)
	a.runs[1].PC = a.detour[0].Addr
	a.run()
	if a.ctl.Handled != 2 || a.ctl.FaultPC != arenaProbed || a.ctl.Stepping != 0 {
		t.Errorf("handled %d, at %#x, %d with a trap flag", a.ctl.Handled, a.ctl.FaultPC, a.ctl.Stepping)
	}
	if n := a.counted(1, 0); n != 1 {
		t.Errorf("%d hits", n)
	}
}

// TestHandlerStepWithoutReason: the kernel says of a single step that the CPU gave no reason for the trap (TRAP_BRKPT),
// as it may where a hypervisor has lost DR6.BS. The thread sends itself such a signal while its trap flag is set. int1 would
// not do: some virtual machines do not step over it.
func TestHandlerStepWithoutReason(t *testing.T) {
	const info, code = arenaData + 0x100, arenaData
	a := newArena(t, buildDetourChild(t))
	a.probe(hexBytes(t, "4801c6 c3"), map[uint64][]arch.ProbeOp{0: {{Event: 1, Count: true}}}, arch.Policy{Force: arch.TacticStep})
	a.handler()
	a.ctl.Actions = arenaActions
	a.add([16]uint64{RSP: arenaStack, RSI: 77, RAX: 1}, 0x202)
	a.put64(info, uint64(syscall.SIGTRAP), trapBrkpt)
	copy(a.at(code), slices.Concat(
		hexBytes(t, "57 56 52 4152 51 4153 50"),                     // push %rdi %rsi %rdx %r10 %rcx %r11 %rax
		hexBytes(t, "b827000000 0f05 89c7"),                         // getpid, to %edi
		hexBytes(t, "b8ba000000 0f05 89c6"),                         // gettid, to %esi
		hexBytes(t, "ba05000000"),                                   // mov $SIGTRAP,%edx
		binary.LittleEndian.AppendUint64(hexBytes(t, "49ba"), info), // mov $info,%r10
		hexBytes(t, "b829010000"),                                   // rt_tgsigqueueinfo
		hexBytes(t, "9c 810c2400010000 9d 0f05"),                    // pushfq, orl $0x100,(%rsp), popfq, syscall
		hexBytes(t, "58 415b 59 415a 5a 5e 5f"),                     // pop what was pushed
		hexBytes(t, "4801c6 c3"),                                    // add %rax,%rsi, ret
	))
	a.runs[1].PC = code
	a.run()
}

// TestHandlerChains holds the resident handler to what the kernel would have done with
// the disposition that it stands for.
func TestHandlerChains(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name    string
		app     uint64
		send    uint64
		fault   bool
		dies    bool
		handled uint64
	}{
		{"default_fault", appDefault, 0, true, true, 0},
		{"default_sent", appDefault, 1, false, true, 0},
		{"ignored_fault", appIgnored, 0, true, true, 0},
		{"ignored_sent", appIgnored, 1, false, false, 0},
		{"handler_sent", appHandled, 1, false, false, 1},
		{"once_fault_then_fault", appOnce, 0, true, true, 1},
		{"once_sent", appOnce, 1, false, false, 1},
		{"once_sent_then_fault", appOnce, 1, true, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			rdi := uint64(arenaData + 8)
			if c.fault {
				rdi = arenaHole
			}
			a.faultingRuns(2, rdi)
			a.ctl.App, a.ctl.Send = c.app, c.send
			if c.name == "once_fault_then_fault" {
				a.ctl.Repair = arenaData + 8
			}
			out, err := a.start()
			if died := killedBy(err, syscall.SIGSEGV); died != c.dies || !died && err != nil {
				t.Errorf("child: %v\n%s", err, out)
			}
			if a.ctl.Handled != c.handled {
				t.Errorf("the program's handler ran %d times, want %d", a.ctl.Handled, c.handled)
			}
		})
	}
}

// TestHandlerSent sends SIGSEGV at each instruction of a detour: at loads of arguments, and at the
// copies of displaced instructions too. It is no fault of theirs: the program's handler gets each one,
// and the code goes on as if nothing had been.
func TestHandlerSent(t *testing.T) {
	child := buildDetourChild(t)
	for _, resumes := range []bool{true, false} {
		t.Run(fmt.Sprintf("resumes=%t", resumes), func(t *testing.T) {
			a := newArena(t, child)
			loads := &fetch.Program{Fixed: 16, Args: []fetch.Arg{
				{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Derefs: []int64{0}, Size: 8},
				{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Derefs: []int64{-8}, Size: 8, Off: 8},
			}}
			a.probe(hexBytes(t, faulting), map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: loads}}, 4: {{Event: 2, Count: true}}}, arch.Policy{Force: arch.TacticJump})
			a.handlerFor(resumes)
			a.put64(arenaData, 0xfeed, 0x1234567)
			a.add([16]uint64{RSP: arenaStack, RDI: arenaData + 8, RSI: 77}, 0x202)
			places := a.instructions()
			a.put64(arenaData+0x1000, places...)
			a.ctl.Mode, a.ctl.Places, a.ctl.NPlaces = modeSteps, arenaData+0x1000, uint64(len(places))
			a.ctl.Actions, a.ctl.App, a.ctl.Send = arenaActions, appHandled, 2
			a.run()
			if a.ctl.Handled != a.ctl.DidNested || a.ctl.Handled < uint64(len(places))/3 {
				t.Errorf("the program's handler ran %d times for %d signals at %d places", a.ctl.Handled, a.ctl.DidNested, len(places))
			}
			recs := a.records()
			if n := a.counted(2, 0); uint64(len(recs)) != a.ctl.Did || n != a.ctl.Did {
				t.Errorf("%d records and %d hits in %d runs", len(recs), n, a.ctl.Did)
			}
			for i, rec := range recs {
				if v, w := u64At(rec.rec, len(rec.rec)-16), u64At(rec.rec, len(rec.rec)-8); v != 0x1234567 || w != 0xfeed {
					t.Errorf("record %d: %#x and %#x", i, v, w)
				}
			}
		})
	}
}

func killedBy(err error, sig syscall.Signal) bool {
	var e *exec.ExitError
	if !errors.As(err, &e) {
		return false
	}
	w, ok := e.Sys().(syscall.WaitStatus)
	return ok && w.Signaled() && w.Signal() == sig
}
