package amd64

import (
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// stackWord is the argument $stackN, deref one that follows a register.
func stackWord(n int) fetch.Arg {
	return fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Kind: fetch.BaseStack, N: n}, Size: 8}
}

func deref(r Reg, off int64) fetch.Arg {
	return fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(r)}, Derefs: []int64{off}, Size: 8}
}

// In a jail in which asking for the signal mask kills, a record that can not fault does not
// ask: one without a load, one of words of the stack in the page of the frame, and any
// where no system call may be made. All others do, and are killed.
func TestDetourAsksOnlyWhereItMust(t *testing.T) {
	const low, edge = arenaStack + 0x800, arenaStack + 0xff8 // stack pointers in a page
	child := buildDetourChild(t)
	atEntry := stackWord(1)
	atEntry.AtEntry = true
	for _, c := range []struct {
		name  string
		arg   fetch.Arg
		sp    uint64
		plain bool
		asks  bool
	}{
		{"register", fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8}, low, false, false},
		{"stack", stackWord(2), low, false, false},
		{"stack_pointer", deref(RSP, 16), low, false, false},
		{"last_word_of_page", stackWord(255), low, false, false},
		{"first_word_of_next", stackWord(256), low, false, true},
		{"next_page", stackWord(1), edge, false, true},
		{"beyond", stackWord(600), low, false, true},
		{"below", deref(RSP, -8), low, false, true},
		{"pointer", deref(RDI, 0), low, false, true},
		{"pointer_plain", deref(RDI, 0), low, true, false},
		{"next_page_plain", stackWord(1), edge, true, false},
		{"entry", atEntry, low, false, false},
		{"entry_next_page", atEntry, edge, false, true},
		{"entry_plain", atEntry, edge, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			a.w.PlainLoads = c.plain
			prog := &fetch.Program{Fixed: 8, Args: []fetch.Arg{c.arg}, Return: c.arg.AtEntry}
			work := map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog}}}
			if c.arg.AtEntry {
				pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
				work[0] = []arch.ProbeOp{{Event: 1, Role: arch.RoleEntry, Prog: prog, Pool: pool}}
				work[carryExit] = []arch.ProbeOp{{Event: 1, Role: arch.RoleExit, Prog: prog, Pool: pool, Instance: 1}}
			}
			a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
			a.handler()
			a.ctl.Jail = 1
			a.add([16]uint64{RSP: c.sp, RDI: arenaData}, 0x202)
			out, err := a.start()
			if killed := err != nil; killed != c.asks || !killed && len(a.records()) != 1 {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
	}
}

// reach knows of every work that makes a load, and of no other: the mask is asked for
// exactly where one is looked at.
func TestReachKnowsAllLoads(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	writer := newArena(t, &detourChild{}).w
	var with, without int
	for range 6000 {
		prog := randomProgram(r, r.IntN(2) == 0)
		prog.Args = prog.Args[:1]
		if r.IntN(2) == 0 {
			prog.Args[0] = fetch.Arg{Store: fetch.StoreValue, Base: randomBase(r), Size: 8, AtEntry: prog.Return}
		}
		prog.Fixed, prog.Dynamic = argSlot(&prog.Args[0]), isString(&prog.Args[0])
		w := arch.ProbeOp{Event: 1, Role: arch.RoleRecord, Prog: prog}
		if prog.Return {
			w.Role = []arch.Role{arch.RoleEntry, arch.RoleExit}[r.IntN(2)]
			w.Pool = &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
		}
		w.Count = w.Role != arch.RoleEntry && r.IntN(8) == 0
		d, err := detourOf(t, &writer, w)
		if err != nil {
			t.Fatal(err)
		}
		loads := len(d.Fixups) > 0
		if (reach(&w) > 0) != loads {
			t.Fatalf("role %d, count %v, %+v: reach %d, %d loads", w.Role, w.Count, prog.Args[0], reach(&w), len(d.Fixups))
		}
		if loads && !prog.Loads() || !loads && w.Role == arch.RoleRecord && !w.Count && prog.Loads() {
			t.Fatalf("role %d, count %v, %+v: Loads is %v, %d loads", w.Role, w.Count, prog.Args[0], prog.Loads(), len(d.Fixups))
		}
		if loads {
			with++
		} else {
			without++
		}
	}
	if with < 300 || without < 300 {
		t.Errorf("%d with loads, %d without", with, without)
	}
}

// detourOf generates the detour of a probe on carryFunction's first instruction.
func detourOf(t *testing.T, w *arch.CodegenEnv, work arch.ProbeOp) (*arch.Detour, error) {
	t.Helper()
	fn, err := X86.Analyse(&arch.Func{Name: "f", Addr: arenaProbed, Code: hexBytes(t, carryFunction)})
	if err != nil {
		t.Fatal(err)
	}
	regions, refused := fn.Plan([]uint64{arenaProbed}, arch.Policy{})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	return fn.Detour(arenaDetours, regions[0], map[uint64][]arch.ProbeOp{arenaProbed: {work}}, w)
}

// A work whose faults are always caught makes no system call, whatever it reads, unless they are caught later only.
func TestPlainLoadsOfWork(t *testing.T) {
	writer := newArena(t, &detourChild{}).w
	writer.Resident = arenaTables
	prog := &fetch.Program{Fixed: 24, Dynamic: true, Args: []fetch.Arg{deref(RDI, 0), deref(RSI, 8), {Store: fetch.StoreString, Base: fetch.Base{Reg: fetch.Reg(RDX)}, Derefs: []int64{0}, Size: 1, Off: 16}}}
	prog.Args[1].Off = 8
	for _, c := range []struct{ plain, later bool }{{false, false}, {true, false}, {true, true}, {false, true}} {
		if writer.Asks = 0; c.later {
			writer.Asks = arenaTables
		}
		d, err := detourOf(t, &writer, arch.ProbeOp{Event: 1, Prog: prog, PlainLoads: c.plain})
		if err != nil {
			t.Fatal(err)
		}
		calls := walkDetour(t, d).systemCalls()
		if (len(calls) == 0) != (c.plain && !c.later) {
			t.Errorf("%+v: system calls %d", c, calls)
		}
	}
}
