package amd64

import (
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// faultingCalls read the callee's address at 0x40 from a register, or from the stack pointer and a
// register; then add $1,%rax; ret.
var faultingCalls = []struct {
	name, code string
	base       uint64 // what the address counts from, beside RDI
}{
	{"base", "ff97 40000000 4883c001 c3", 0},
	{"from the stack pointer", "ff943c 40000000 4883c001 c3", arenaStack},
}

// TestCallFaults has handlers told of the fault of a call through memory, which is copied as a push
// and a jump: they see the stack pointer of the call, and leave it to the program's own handler, at
// the call's address, which repairs it.
func TestCallFaults(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range faultingCalls {
		for _, tc := range tactics {
			t.Run(c.name+"/"+tc.name, func(t *testing.T) {
				const n, callee, good = 3, arenaPlain + 0x100, arenaData + 8
				a := newArena(t, child)
				a.gate()
				a.probe(hexBytes(t, c.code), map[uint64][]arch.ProbeOp{0: {
					{Event: 1, Count: true},
					{Event: 1, Role: arch.RoleCall, Call: called(0), Fault: true},
					{Event: 1, Role: arch.RoleCall, Call: called(1), Fault: true},
				}}, tc.policy)
				a.handler()
				copy(a.at(callee), hexBytes(t, "b829000000 c3")) // mov $41,%eax; ret
				a.put64(good+0x40, callee)
				for i := range 2 {
					a.put64(callDesc(i)+callAction, uint64(arch.ActionDrop))
				}
				a.ctl.Hole, a.ctl.Actions = arenaHole, arenaActions
				a.ctl.App, a.ctl.Repair = appHandled, good-c.base
				for i := range uint64(n) {
					a.add([16]uint64{RSP: arenaStack, RDI: arenaHole - c.base, RBX: i}, 0x202)
				}
				a.run()
				if a.ctl.Handled != 2*n || a.ctl.FaultPC != arenaProbed || a.ctl.FaultAddr != arenaHole+0x40 {
					t.Errorf("the program's handler: %d faults, at %#x, address %#x", a.ctl.Handled, a.ctl.FaultPC, a.ctl.FaultAddr)
				}
				for i := range 2 {
					if got := a.callsOf(i); got != n {
						t.Fatalf("handler %d is told of %d faults, want %d", i, got, n)
					}
					for k := range uint64(n) {
						w := a.told(i, k)
						if w.regs[RSP] != arenaStack || w.regs[RDI] != arenaHole-c.base || w.regs[RBX] != k || w.instance != trapPage {
							t.Errorf("handler %d, fault %d: %#x", i, k, w)
						}
					}
				}
				if got := a.counted(1, 0); got != n {
					t.Errorf("%d hits", got)
				}
			})
		}
	}
}

// TestFaultEntries: handlers are told of what the first copy of the instruction at the point does,
// whatever it consists of, and of nothing else.
func TestFaultEntries(t *testing.T) {
	for _, c := range []struct {
		name, code string
		parts      int
	}{
		{"load", "488b05 00000000 c3", 1},
		{"call_rip", "ff15 00000000 c3", 2},
		{"call_base", "ff97 40000000 c3", 2},
		{"call_stack", "ff9424 40000000 c3", 2},
		{"call_reg", "41ffd3 4883c001 c3", 2},
		{"call", "e8 00010000 c3", 1}, // of the push; the jump stands for the callee
		{"call_next", "e8 00000000 58 c3", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, &detourChild{})
			a.w.Gate = arenaGate
			a.probe(hexBytes(t, c.code), map[uint64][]arch.ProbeOp{
				0: {{Event: 1, Role: arch.RoleCall, Call: called(0), Fault: true}},
			}, arch.Policy{})
			d := a.detour[0]
			told := 0
			for _, e := range AppendFaultEntries(nil, d) {
				if e.Stub == 0 {
					continue
				}
				told++
				if e.To != arenaProbed || e.Lo >= e.Stub || e.Stub != d.Faults[0].Stub {
					t.Errorf("%+v", e)
				}
			}
			if told != c.parts {
				t.Errorf("%d entries lead to the stub, want %d: %+v", told, c.parts, d.Pairs)
			}
		})
	}
}
