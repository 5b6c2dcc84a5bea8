package amd64

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// A kernel's addresses as they are where a detour is put.
const (
	kernelText    = 0xffffffff81200000
	kernelDetours = 0xffffffffbfe00000
	kernelRing    = 0xffffffffbfe60000
	kernelPool    = 0xffffffffbfe40000
)

func kernelWriter(t testing.TB) *arch.CodegenEnv {
	t.Helper()
	l, err := ring.NewLayout(ring.Config{CPUs: 2, Events: 128, DataSize: 16 << 10, LockedOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return &arch.CodegenEnv{Ring: kernelRing, Layout: l, Kernel: &arch.Kernel{
		CPU: 0x32d20, Current: 0x32d00, Preempt: 0x32d10, PID: 0x998, Comm: 0xc48, UserEnd: 1<<47 - 4096,
		ReadKernel: kernelText + 0x1000, ReadUser: kernelText + 0x1100, StringKernel: kernelText + 0x1200,
		StringUser: kernelText + 0x1300, LengthUser: kernelText + 0x1400,
	}}
}

// openat2 begins as do_sys_openat2 of Debian's 6.1 does, with its nop for ftrace:
//
//	0 nop   5 push %r12   7 mov %rsi,%r12   10 push %rbp   11 mov %edi,%ebp   13 call -   18 ret, int3s
const (
	openat2     = "0f1f440000 4154 4989f4 55 89fd e800100000 c3cccccccc"
	openat2Exit = 18
)

// analyseKernel analyses a function of a kernel.
func analyseKernel(t *testing.T, code string, reserved int) arch.Function {
	t.Helper()
	fn, err := X86.Analyse(&arch.Func{
		Name: "f", Addr: kernelText, Code: hexBytes(t, code), Reserved: reserved,
		After: bytes.Repeat([]byte{0x90}, 16), Returns: func(a uint64) bool { return a == kernelText+0x2000 },
	})
	if err != nil {
		t.Fatal(err)
	}
	return fn
}

// kernelDetour makes the detour of one point.
func kernelDetour(t *testing.T, fn arch.Function, at uint64, ws []arch.ProbeOp) (*arch.Detour, *Region) {
	t.Helper()
	rs, refused := fn.Plan([]uint64{at}, arch.Policy{Force: arch.TacticJump})
	if len(rs) != 1 {
		t.Fatalf("refused: %v", refused)
	}
	d, err := fn.Detour(kernelDetours, rs[0], map[uint64][]arch.ProbeOp{at: ws}, kernelWriter(t))
	if err != nil {
		t.Fatal(err)
	}
	return d, rs[0].(*Region)
}

// straight counts the instructions that a hit takes more than the code without the probe: the
// jump, and the detour up to the jump back, without the displaced instructions. No branch is
// taken but, for a user's address, that which asks whether it is one; callees count nothing.
func straight(t *testing.T, d *arch.Detour, r *Region) int {
	t.Helper()
	n := 1
	for a := d.Addr; ; {
		in, err := Decode(d.Code[a-d.Addr:])
		if err != nil {
			t.Fatal(err)
		}
		if in.Kind == KindRet {
			return n - len(r.Steps) + 1
		}
		n++
		if a == d.Back {
			return n - len(r.Steps)
		}
		next := a + uint64(in.Len)
		to, _ := in.Target(a)
		if in.Kind == KindJmp || in.Kind == KindJcc && in.Map == Map0F && in.Opcode == 0x80|byte(CondB) {
			next = to
		}
		a = next
	}
}

// TestKernelDetourCost tells what a hit costs in a kernel, in instructions, and holds it to
// that.
func TestKernelDetourCost(t *testing.T) {
	reg := func(r Reg, off int) fetch.Arg {
		return fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(r)}, Size: 8, Off: off}
	}
	three := []fetch.Arg{reg(RDI, 0), reg(RDX, 8), reg(RCX, 16)}
	str := func(user uint32) fetch.Arg {
		return fetch.Arg{Store: fetch.StoreString, Base: fetch.Base{Reg: fetch.Reg(RSI)}, Derefs: []int64{0}, Size: 1, User: user, Off: 24}
	}
	ret := &fetch.Program{Fixed: 8, Return: true, Args: []fetch.Arg{reg(RAX, 0)}}
	pool := &arch.Pool{Base: kernelPool, Slots: 8, Stride: SlotStride(0)}
	entry := uint64(kernelText + 5)
	for _, c := range []struct {
		name string
		at   uint64
		work arch.ProbeOp
		most int
	}{
		{"counter", entry, arch.ProbeOp{Event: 3, Count: true}, 5},
		{"record", entry, arch.ProbeOp{Event: 3}, 36},
		{"record with three registers", entry, arch.ProbeOp{Event: 3, Prog: &fetch.Program{Fixed: 24, Args: three}}, 40},
		{"record with three registers and a ustring", entry, arch.ProbeOp{Event: 3, Prog: &fetch.Program{Fixed: 32, Dynamic: true, Args: append(three, str(1))}}, 120},
		{"record with three registers and a string", entry, arch.ProbeOp{Event: 3, Prog: &fetch.Program{Fixed: 32, Dynamic: true, Args: append(three, str(0))}}, 124},
		{"return's entry", entry, arch.ProbeOp{Event: 3, Role: arch.RoleEntry, Prog: ret, Pool: pool}, 19},
		{"return's exit", kernelText + openat2Exit, arch.ProbeOp{Event: 3, Role: arch.RoleExit, Prog: ret, Pool: pool, Instance: 3}, 56},
	} {
		d, r := kernelDetour(t, analyseKernel(t, openat2, 5), c.at, []arch.ProbeOp{c.work})
		n := straight(t, d, r)
		t.Logf("%-45s +%d instructions, %d bytes", c.name, n, len(d.Code))
		if n > c.most {
			t.Errorf("%s: %d instructions, want at most %d", c.name, n, c.most)
		}
	}
}

// TestKernelEntry looks at where the entry of a function is that ftrace patches, and at what
// may be there.
func TestKernelEntry(t *testing.T) {
	for _, c := range []struct {
		name, code string
		entry      uint64
		reserved   int
	}{
		{"nop", openat2, 5, 5},
		{"landing", "f30f1efa" + openat2, 9, 5},
		{"call of ftrace", "f30f1efa e811223344" + openat2[10:], 9, 5},
		{"half of a patch", "f30f1efa cc11223344" + openat2[10:], 9, 5},
		{"not traced", openat2, 0, 0},
		{"landing, not traced", "f30f1efa" + openat2, 4, 0},
	} {
		fn := analyseKernel(t, c.code, c.reserved)
		if e := fn.EntryPoint(); e != kernelText+c.entry {
			t.Errorf("%s: entry at +%d, want +%d", c.name, e-kernelText, c.entry)
		}
		rs, refused := fn.Plan([]uint64{fn.EntryPoint()}, arch.Policy{Force: arch.TacticJump})
		if len(rs) != 1 || rs[0].Start() != fn.EntryPoint() {
			t.Errorf("%s: %v, refused %v", c.name, rs, refused)
		}
		if c.reserved == 0 {
			continue
		}
		at := fn.EntryPoint() - 5
		_, refused = fn.Plan([]uint64{at}, arch.Policy{})
		var ref *Refusal
		if !errors.As(refused[at], &ref) || ref.Rule != RulePatched {
			t.Errorf("%s: a probe on the reserved bytes: %v", c.name, refused[at])
		}
		if fn.Check(at+2) == nil {
			t.Errorf("%s: a probe may stand inside of the reserved bytes", c.name)
		}
	}
}

// TestKernelReturns looks at how a kernel's functions are left.
func TestKernelReturns(t *testing.T) {
	for _, c := range []struct {
		name, code string
		exits      int  // 0: refused
		jump       bool // all get one
	}{
		{"ret and its padding", "31c0 0f1f440000 c3cccccccc", 1, true},
		{"rets in the middle", "85ff 740a 0f1f440000 c3cccccccc 31c0 c3cccccccc", 2, true},
		{"ret with one int3, jumped to", "85ff 7405 0f1f440000 c3cc 31c0 0f1f440000 c3cccccccc", 2, false},
		{"ret with one int3 at a block's end", "0f1f440000 31c0 c3cc", 1, true},
		{"a jump to the return thunk", "31c0 e9f91f0000", 1, true},
		{"a jump elsewhere", "31c0 e9f92f0000", 0, false},
	} {
		fn := analyseKernel(t, c.code, 0)
		exits, err := fn.Exits()
		if len(exits) != c.exits || (err != nil) != (c.exits == 0) {
			t.Errorf("%s: exits %v, %v", c.name, exits, err)
		}
		if c.exits == 0 {
			continue
		}
		var points []uint64
		for _, e := range exits {
			if e.Tail {
				t.Errorf("%s: a tail at 0x%x", c.name, e.Addr)
			}
			points = append(points, e.Addr)
		}
		rs, refused := fn.Plan(points, arch.Policy{Force: arch.TacticJump})
		if c.jump != (len(refused) == 0) || c.jump && len(rs) != len(points) {
			t.Errorf("%s: %d regions, refused %v", c.name, len(rs), refused)
		}
		for _, r := range rs {
			if _, err := fn.Detour(kernelDetours, r, nil, kernelWriter(t)); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// TestKernelRefusals looks at what no code for a kernel is made of.
func TestKernelRefusals(t *testing.T) {
	fn := analyseKernel(t, openat2, 5)
	rs, _ := fn.Plan([]uint64{fn.EntryPoint()}, arch.Policy{Force: arch.TacticJump})
	many := &fetch.Program{Fixed: 512, Dynamic: true}
	for range 64 {
		many.Args = append(many.Args, fetch.Arg{Store: fetch.StoreString, Derefs: []int64{0}, Size: 1})
	}
	goString := &fetch.Program{Fixed: 8, Dynamic: true, Args: []fetch.Arg{{Store: fetch.StoreCounted, Size: 1}}}
	stack := &fetch.Program{Args: []fetch.Arg{{Store: fetch.StoreValue, Size: 8, AtEntry: true, Base: fetch.Base{Kind: fetch.BaseStack, N: 1}}}}
	pool := &arch.Pool{Base: kernelPool, Slots: 8, Stride: SlotStride(1)}
	for _, c := range []struct {
		name string
		work arch.ProbeOp
		want error
	}{
		{"wait", arch.ProbeOp{Role: arch.RoleWait}, unix.EOPNOTSUPP},
		{"gostring", arch.ProbeOp{Prog: goString}, unix.EINVAL},
		{"much stack", arch.ProbeOp{Prog: many}, ErrFrame},
		{"handler and stack", arch.ProbeOp{Role: arch.RoleEntry, Call: &arch.Call{}, Prog: stack, Pool: pool}, unix.EOPNOTSUPP},
	} {
		w := kernelWriter(t)
		w.Gate = kernelDetours + 0x8000
		if _, err := fn.Detour(kernelDetours, rs[0], map[uint64][]arch.ProbeOp{fn.EntryPoint(): {c.work}}, w); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	w := kernelWriter(t)
	w.Kernel.StringUser = 1 << 40
	prog := &fetch.Program{Fixed: 8, Dynamic: true, Args: []fetch.Arg{{Store: fetch.StoreString, Derefs: []int64{0}, Size: 1}}}
	if _, err := fn.Detour(kernelDetours, rs[0], map[uint64][]arch.ProbeOp{fn.EntryPoint(): {{Prog: prog}}}, w); !errors.Is(err, ErrReach) {
		t.Errorf("a function out of reach: %v", err)
	}
	w.Kernel.StringUser = 0
	if _, err := fn.Detour(kernelDetours, rs[0], map[uint64][]arch.ProbeOp{fn.EntryPoint(): {{Prog: prog}}}, w); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a function that the kernel has not: %v", err)
	}
}
