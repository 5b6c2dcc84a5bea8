package amd64

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// A hit takes no lock, allocates nothing and makes no system call. These tests decode what is
// emitted and walk through all of it: no call, no way out but back and to the gate, no system
// call but those that are documented, and no loop without a bound. A `lock` prefix stands for
// an atomic instruction, which waits for nobody.

// walked is emitted code, taken apart.
type walked struct {
	t     *testing.T
	addr  uint64
	code  []byte
	ins   map[uint64]Inst // all that can be reached
	moved map[uint64]bool // copies of the program's own instructions
	out   map[uint64]bool // jumps that leave the code: where to
}

// walk takes apart what can be reached from the start and from the other entries.
func walk(t *testing.T, addr uint64, code []byte, entries ...uint64) *walked {
	t.Helper()
	w := &walked{t: t, addr: addr, code: code, ins: map[uint64]Inst{}, moved: map[uint64]bool{}, out: map[uint64]bool{}}
	for todo := append(entries, addr); len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if at-addr >= uint64(len(code)) {
			w.out[at] = true
			continue
		}
		if _, seen := w.ins[at]; seen {
			continue
		}
		in, err := Decode(code[at-addr:])
		if err != nil {
			t.Fatalf("0x%x of % x: %v", at-addr, code, err)
		}
		w.ins[at] = in
		todo = append(todo, w.next(at)...)
	}
	return w
}

// next are the addresses that control can go on at.
func (w *walked) next(at uint64) (out []uint64) {
	in := w.ins[at]
	if target, ok := in.Target(at); ok && !in.RIPMem {
		out = append(out, target)
	}
	switch in.Kind {
	case KindJmp, KindJmpInd, KindRet, KindFar:
	default:
		out = append(out, at+uint64(in.Len))
	}
	return out
}

// walkDetour walks through a detour; its restartable sequences' abort handlers are entries too.
func walkDetour(t *testing.T, d *arch.Detour) *walked {
	t.Helper()
	var entries []uint64
	for _, f := range d.Fixups {
		entries = append(entries, f.To)
	}
	for _, f := range d.Faults {
		entries = append(entries, f.Stub)
	}
	sig := binary.LittleEndian.AppendUint32([]byte{0x0f, 0xb9, 0x3d}, rseqSig)
	for i := 0; ; {
		n := bytes.Index(d.Code[i:], sig)
		if n < 0 {
			break
		}
		i += n + len(sig)
		entries = append(entries, d.Addr+uint64(i))
	}
	w := walk(t, d.Addr, d.Code, entries...)
	for _, p := range d.Pairs {
		w.moved[p.Copy] = true
	}
	return w
}

// systemCalls are the numbers of those that the code makes: in each case the last constant in
// EAX before it.
func (w *walked) systemCalls() []uint64 {
	w.t.Helper()
	found := map[uint64]bool{}
	for at, in := range w.ins {
		if in.Kind != KindSyscall || w.moved[at] {
			continue
		}
		nr, ok := w.constantBefore(at)
		if !ok {
			w.t.Errorf("0x%x: a system call whose number is no constant", at-w.addr)
		}
		found[nr] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func (w *walked) constantBefore(at uint64) (uint64, bool) {
	for back := at; back > w.addr && at-back < 64; back-- {
		in, ok := w.ins[back]
		if ok && in.Enc == EncLegacy && in.Map == MapOne && in.Opcode == 0xb8 && in.Rex&1 == 0 {
			return uint64(uint32(in.Imm)), true
		}
	}
	return 0, false
}

// straight checks that nothing is called, that nothing traps, and that control leaves only to
// where it may.
func (w *walked) straight(allowed ...uint64) {
	w.t.Helper()
	for at, in := range w.ins {
		switch in.Kind {
		case KindPlain, KindJmp, KindJcc, KindSyscall:
		case KindJmpInd:
			if !w.moved[at] && !in.RIPMem && in.HasMem() {
				w.t.Errorf("0x%x: a jump through memory", at-w.addr)
			}
		default:
			if !w.moved[at] {
				w.t.Errorf("0x%x: % x is of kind %d", at-w.addr, w.bytes(at), in.Kind)
			}
		}
	}
	for to := range w.out {
		if !slices.Contains(allowed, to) {
			w.t.Errorf("control leaves to 0x%x, and may only to %#x", to, allowed)
		}
	}
}

func (w *walked) bytes(at uint64) []byte {
	in := w.ins[at]
	return w.code[at-w.addr:][:in.Len]
}

// loops gives the sets of instructions that can be come back to (strongly connected
// components, Tarjan 1972).
func (w *walked) loops() (out [][]uint64) {
	index, low, on := map[uint64]int{}, map[uint64]int{}, map[uint64]bool{}
	var stack []uint64
	var visit func(uint64)
	visit = func(v uint64) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, on[v] = append(stack, v), true
		self := false
		for _, s := range w.next(v) {
			if _, inside := w.ins[s]; !inside {
				continue
			}
			self = self || s == v
			if index[s] == 0 {
				visit(s)
				low[v] = min(low[v], low[s])
			} else if on[s] {
				low[v] = min(low[v], index[s])
			}
		}
		if low[v] != index[v] {
			return
		}
		i := slices.Index(stack, v)
		c := slices.Clone(stack[i:])
		stack = stack[:i]
		for _, x := range c {
			on[x] = false
		}
		if len(c) > 1 || self {
			out = append(out, c)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(w.ins)) {
		if index[at] == 0 {
			visit(at)
		}
	}
	return out
}

// Kinds of loops that end.
const (
	loopCounts = "counts"  // something goes up or down by a constant, and is compared
	loopOthers = "retries" // a compare and exchange that fails only because another thread's did not
	loopWaits  = "waits"   // in the kernel
	loopNone   = "no bound"
)

// kindOf says why a loop ends.
func (w *walked) kindOf(loop []uint64) string {
	leaves, counts, exchange, waits := false, false, false, false
	for _, at := range loop {
		in := w.ins[at]
		if in.Kind == KindJcc {
			for _, s := range w.next(at) {
				leaves = leaves || !slices.Contains(loop, s)
			}
		}
		counts = counts || in.counts()
		exchange = exchange || in.Prefix&PrefixLock != 0 && in.Map == Map0F && in.Opcode&0xfe == 0xb0
		waits = waits || in.Kind == KindSyscall
	}
	switch {
	case !leaves:
		return loopNone
	case waits:
		return loopWaits
	case counts:
		return loopCounts
	case exchange:
		return loopOthers
	}
	return loopNone
}

// counts says whether an instruction moves a register, or a word of the frame, by a constant.
func (in *Inst) counts() bool {
	ext := in.ModRM >> 3 & 7
	if in.Enc != EncLegacy || in.Map != MapOne || in.Prefix&PrefixLock != 0 {
		return false
	}
	switch in.Opcode {
	case 0x80, 0x81, 0x83: // add, sub
		return in.Imm != 0 && (ext == 0 || ext == 5)
	case 0xfe, 0xff: // inc, dec
		return ext < 2
	case 0x8d: // lea
		return in.DispLen > 0 && (!in.HasSIB && in.Reg() == in.RM() || in.HasSIB && in.Reg() == in.SIB&7|in.Rex&1<<3)
	}
	return false
}

// locks counts the instructions with a lock prefix.
func (w *walked) locks() (n int) {
	for at, in := range w.ins {
		if in.Prefix&PrefixLock != 0 && !w.moved[at] {
			n++
		}
	}
	return n
}

// mainLine counts the instructions with a lock prefix on the way that most hits take, where no
// conditional jump is taken.
func (w *walked) mainLine() (locked int) {
	seen := map[uint64]bool{}
	for at := w.addr; !seen[at]; {
		seen[at] = true
		in, ok := w.ins[at]
		if !ok {
			break
		}
		if in.Prefix&PrefixLock != 0 && !w.moved[at] {
			locked++
		}
		next := w.next(at)
		if len(next) == 0 {
			break
		}
		at = next[len(next)-1]
	}
	return locked
}

// hitKinds are what a probe can do at a hit; memory says that its arguments read memory that
// may not be there, lockless that with rseq most hits make no locked access.
var hitKinds = []struct {
	name             string
	memory, lockless bool
	work             func(r *rand.Rand) map[uint64][]arch.ProbeOp
}{
	{"count", false, true, func(*rand.Rand) map[uint64][]arch.ProbeOp { return at0(arch.ProbeOp{Event: 1, Count: true}) }},
	{"record", false, true, func(*rand.Rand) map[uint64][]arch.ProbeOp { return at0(arch.ProbeOp{Event: 1, Prog: &fetch.Program{}}) }},
	{"registers", false, true, func(*rand.Rand) map[uint64][]arch.ProbeOp {
		return at0(arch.ProbeOp{Event: 1, Prog: &fetch.Program{Fixed: 16, Args: []fetch.Arg{
			{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8},
			{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.RegFlags}, Size: 8, Off: 8},
		}}})
	}},
	{"arguments", true, false, func(r *rand.Rand) map[uint64][]arch.ProbeOp {
		return at0(arch.ProbeOp{Event: 1, Prog: randomProgram(r, false)})
	}},
	{"returns", true, false, func(r *rand.Rand) map[uint64][]arch.ProbeOp {
		p := randomProgram(r, true)
		return returning(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(len(p.EntryBases()))}, p, nil)
	}},
	{"returns with a maximum", false, false, func(*rand.Rand) map[uint64][]arch.ProbeOp {
		return returning(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(0), Max: 3, Active: arenaPool - 64}, &fetch.Program{Return: true}, nil)
	}},
	{"handlers", false, false, func(*rand.Rand) map[uint64][]arch.ProbeOp {
		c := &arch.Call{Desc: 0x1234}
		w := returning(&arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(0)}, &fetch.Program{Return: true}, c)
		w[5] = []arch.ProbeOp{{Event: 3, Role: arch.RoleCall, Call: c}, {Event: 3, Role: arch.RoleCall, Call: c, After: true}}
		return w
	}},
	{"fault handlers", false, true, func(*rand.Rand) map[uint64][]arch.ProbeOp {
		c := &arch.Call{Desc: 0x1234}
		return map[uint64][]arch.ProbeOp{0: {{Event: 1, Count: true}, {Event: 1, Role: arch.RoleCall, Call: c, Fault: true}, {Event: 2, Role: arch.RoleCall, Call: c, Fault: true}}}
	}},
}

func at0(w arch.ProbeOp) map[uint64][]arch.ProbeOp { return map[uint64][]arch.ProbeOp{0: {w}} }

func returning(p *arch.Pool, prog *fetch.Program, c *arch.Call) map[uint64][]arch.ProbeOp {
	return map[uint64][]arch.ProbeOp{
		0:         {{Event: 2, Role: arch.RoleEntry, Prog: prog, Pool: p, Call: c}},
		carryExit: {{Event: 2, Role: arch.RoleExit, Prog: prog, Pool: p, Instance: 2, Call: c}},
	}
}

// goOffsets stand for those of a Go program.
var goOffsets = &arch.GoRuntime{TLS: -8, StackHi: 8, M: 48, GoID: 152, ProcID: 64}

// TestHitCode looks at the code of every kind of probe, told to work in every way.
func TestHitCode(t *testing.T) {
	child := buildDetourChild(t)
	variants := append(slices.Clone(detourVariants), struct {
		name string
		set  func(*arena)
	}{"go", func(a *arena) { a.w.Go, a.w.HasRseq, a.w.TID = goOffsets, false, arch.TIDGo }})
	seen, locked := map[string]int{}, map[string]int{}
	for vi, v := range variants {
		for _, k := range hitKinds {
			if v.name == "go" && k.name == "handlers" {
				continue // this function has no register to check its stack with for so large a frame
			}
			for round := range 4 {
				r := rand.New(rand.NewPCG(uint64(vi), uint64(round)))
				a := newArena(t, child)
				v.set(a)
				a.w.Gate = arenaGate
				a.probe(hexBytes(t, carryFunction), k.work(r), arch.Policy{Force: arch.TacticJump})
				for _, d := range a.detour {
					w := walkDetour(t, d)
					w.straight(behindOf(d), arenaGate)
					checkCalls(t, fmt.Sprint(v.name, ", ", k.name), w.systemCalls(), &a.w, k.memory)
					for _, l := range w.loops() {
						kind := w.kindOf(l)
						if seen[kind]++; kind == loopNone || kind == loopWaits && (!k.memory || a.w.PlainLoads) {
							t.Errorf("%s, %s: a loop of %d instructions at 0x%x: %s", v.name, k.name, len(l), slices.Min(l)-d.Addr, kind)
						}
					}
					locked[k.name] += w.locks()
					if n := w.mainLine(); k.lockless && a.lockless() && n > 0 {
						t.Errorf("%s, %s: %d locked instructions on the main line", v.name, k.name, n)
					}
				}
			}
		}
	}
	t.Logf("loops: %v; instructions with a lock prefix (atomic, not locks): %v", seen, locked)
	if seen[loopCounts] == 0 || seen[loopOthers] == 0 {
		t.Errorf("no loops of a kind were seen at all: %v", seen)
	}
}

// behindOf is where a detour goes back to.
func behindOf(d *arch.Detour) uint64 {
	for _, p := range d.Pairs {
		if p.Copy == d.Back {
			return p.Orig
		}
	}
	return 0
}

// checkCalls compares the system calls with those that are documented: rt_sigprocmask before
// the first load from memory, unless no thread may make one, and gettid where nothing else
// tells the thread's id.
func checkCalls(t *testing.T, what string, got []uint64, w *arch.CodegenEnv, memory bool) {
	t.Helper()
	for _, nr := range got {
		switch {
		case nr == sysRtSigprocmask && memory && !w.PlainLoads:
		case nr == sysGettid && w.TID == arch.TIDSyscall:
		default:
			t.Errorf("%s: system call %d", what, nr)
		}
	}
}

// TestGateCode looks at the gate of a process: up to its wait for the tracer nothing waits, and
// it makes no system call but those that its contract names.
func TestGateCode(t *testing.T) {
	code, err := NewGate(arenaGate, GateEnv{Mailbox: 0x7000_0000, PID: 1234, Wait: 100_000_000})
	if err != nil {
		t.Fatal(err)
	}
	w := walk(t, arenaGate, code)
	if got, want := w.systemCalls(), []uint64{sysGetpid, sysGettid, sysFutex, sysClockGettime}; !slices.Equal(got, want) {
		t.Errorf("system calls %d, want %d", got, want)
	}
	kinds := map[string]int{}
	for _, l := range w.loops() {
		kinds[w.kindOf(l)]++
	}
	if want := map[string]int{loopCounts: 1, loopWaits: 1}; !maps.Equal(kinds, want) { // for a slot; for the answer
		t.Errorf("loops: %v, want %v", kinds, want)
	}
	for at, in := range w.ins {
		if in.Kind == KindCall || in.Kind == KindCallInd || in.Kind == KindRet {
			t.Errorf("0x%x: a call", at-arenaGate)
		}
	}
}
