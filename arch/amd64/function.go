package amd64

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
)

// X86 is the x86-64 instruction set as the engine sees it.
var X86 arch.Arch = x86{}

type x86 struct{}

func (x86) Name() string { return "amd64" }

func (x86) Analyse(f *arch.Func) (arch.Function, error) {
	ff := &Func{
		Name: f.Name, Addr: f.Addr, Code: f.Code, Entries: f.Entries, Go: f.Go,
		Mem: f.Mem, NoReturn: f.NoReturn, Inside: f.Inside,
	}
	for _, p := range f.Parts {
		ff.Parts = append(ff.Parts, Part(p))
	}
	fl, err := Analyse(ff)
	if err != nil {
		return nil, err
	}
	fn := &function{f: f, fl: fl, entry: f.Addr}
	fn.findEntry()
	return fn, nil
}

// function is one analysed function.
type function struct {
	f     *arch.Func
	fl    *Flow
	entry uint64 // where an entry probe stands
	// A Go function that checks its stack has room below the stack pointer from
	// entry to grow, where the block that grows it starts; grow is 0 if it
	// does not check.
	grow uint64
}

// goRoom is the stack that a Go function has below its stack pointer once it has
// checked it (abi.StackNosplitBase, Go 1.26: 800 bytes, of which it may already have
// pushed a return address and a frame pointer).
const goRoom = 700

// maxPrologue is the number of instructions in which a Go function checks its stack.
const maxPrologue = 12

// findEntry moves the entry past a landing instruction (endbr64) and past Go's check
// of the stack: a function that grows its stack starts anew and would be counted twice.
func (fn *function) findEntry() {
	if in, ok := fn.fl.Inst(fn.entry); ok && isEndbr(in, fn.fl.Bytes(fn.entry, int(in.Len))) {
		fn.entry += uint64(in.Len)
	}
	if !fn.f.Go || fn.f.Morestack == nil {
		return
	}
	a := fn.entry
	for range maxPrologue {
		in, ok := fn.fl.Inst(a)
		if !ok || in.Kind != KindPlain && in.Kind != KindJcc {
			return
		}
		next := a + uint64(in.Len)
		if t, ok := in.Target(a); ok && in.Kind == KindJcc && fn.growsStack(t) {
			fn.entry, fn.grow = next, t
		}
		a = next
	}
}

// growsStack says whether the block at a calls one of Go's morestack functions before
// anything else.
func (fn *function) growsStack(a uint64) bool {
	for range 40 { // a store for each register that holds an argument, and the call
		in, ok := fn.fl.Inst(a)
		if !ok || in.Kind != KindPlain && in.Kind != KindCall {
			return false
		}
		if in.Kind == KindCall {
			t, _ := in.Target(a)
			return fn.f.Morestack(t)
		}
		a += uint64(in.Len)
	}
	return false
}

// isEndbr recognises endbr64 (SDM vol. 2A: F3 0F 1E FA).
func isEndbr(in *Inst, code []byte) bool {
	return in.Len == 4 && len(code) == 4 && binary.BigEndian.Uint32(code) == 0xf30f1efa
}

func (fn *function) EntryPoint() uint64 { return fn.entry }

func (fn *function) Check(addr uint64) error {
	ok, inside := fn.fl.Boundary(addr)
	switch {
	case ok:
		return nil
	case inside != 0:
		in, _ := fn.fl.Inst(inside)
		return fmt.Errorf("address 0x%x lies inside the instruction at %s+0x%x (% x): probe one of its ends: %w",
			addr, fn.f.Name, inside-fn.f.Addr, fn.fl.Bytes(inside, int(in.Len)), unix.EILSEQ)
	}
	return fmt.Errorf("address 0x%x holds no instruction of %s that the analysis knows: %w", addr, fn.f.Name, unix.EILSEQ)
}

func (fn *function) Exits() ([]arch.Exit, error) {
	all, err := fn.fl.Exits()
	if err != nil {
		return nil, err
	}
	var out []arch.Exit
	for _, e := range all {
		switch e.Kind {
		case ExitRet:
			out = append(out, arch.Exit{Addr: e.Addr})
		case ExitTailJmp, ExitIndirectTail:
			if !fn.f.Go {
				return nil, fn.tailError(e)
			}
			out = append(out, arch.Exit{Addr: e.Addr, Tail: true})
		case ExitTailJcc, ExitTableJmp, ExitFallThrough:
			return nil, fn.tailError(e)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no instruction that returns: %w", fn.f.Name, unix.EINVAL)
	}
	return out, nil
}

func (fn *function) tailError(e Exit) error {
	return fmt.Errorf("%s is left by a %s at +0x%x (% x): the value is its callee's; probe the callee's return: %w",
		fn.f.Name, e.Kind, e.Addr-fn.f.Addr, fn.fl.Bytes(e.Addr, 5), unix.EOPNOTSUPP)
}

// Start, Inner, Holds and Tactic make a jump's Region an arch.Region.

// Start is where the jump stands.
func (r *Region) Start() uint64 { return r.Addr }

// Tactic is how the region gets control.
func (r *Region) Tactic() arch.Tactic {
	if r.Trap != "" {
		return r.Trap
	}
	return arch.TacticJump
}

// Why says why it is not a jump.
func (r *Region) Why() error { return r.NotJump }

// Inner lists the instructions that start inside the jump's bytes.
func (r *Region) Inner() []uint64 {
	var out []uint64
	for _, s := range r.Steps[1:] {
		if s.Addr < r.Addr+JumpLen {
			out = append(out, s.Addr)
		}
	}
	return out
}

func (fn *function) Plan(points []uint64, policy arch.Policy) ([]arch.Region, map[uint64]error) {
	p := &Regions{Flow: fn.fl, After: padding(fn.f.After), Policy: policy}
	p.Prohibited = func(addr uint64) bool { return slices.Contains(policy.Held, addr) }
	rs, refused := p.Plan(SortPoints(points))
	out := make([]arch.Region, len(rs))
	for i := range rs {
		out[i] = rs[i]
	}
	errs := map[uint64]error{}
	for a, ref := range refused {
		errs[a] = ref
	}
	return out, errs
}

// env tells what is proven at a point, work says whether it is an entry or an exit.
func (fn *function) env(work map[uint64][]arch.Work) func(uint64) PointEnv {
	return func(a uint64) PointEnv {
		e := PointEnv{Live: fn.fl.LiveAt(a), StackFree: -1}
		if a == fn.entry {
			e.Live &^= Flags // psABI 3.2.1 and Go's ABIInternal: flags carry nothing over a call
		}
		if !fn.f.Go {
			return e
		}
		if !fn.f.ABI0 && (a == fn.entry || hasExit(work[a]) || fn.atEdge(a)) {
			e.Live &^= Flags | Set(R12, R13) // scratch in ABIInternal, at calls and returns
		}
		e.StackFree = 0
		if fn.grow != 0 && a >= fn.entry && a < fn.grow {
			e.StackFree = goRoom
		}
		return e
	}
}

// atEdge says whether the instruction at a is a return of a Go function, or stands in the
// block that grows its stack and starts it anew.
func (fn *function) atEdge(a uint64) bool {
	in, ok := fn.fl.Inst(a)
	return ok && in.Kind == KindRet || fn.grow != 0 && a >= fn.grow && a < fn.fl.End()
}

func hasExit(ws []arch.Work) bool {
	for i := range ws {
		if ws[i].Role == arch.RoleExit {
			return true
		}
	}
	return false
}

func (fn *function) Detour(addr uint64, r arch.Region, work map[uint64][]arch.Work, w *arch.Writer) (*arch.Detour, error) {
	return NewDetour(addr, r.(*Region), work, fn.env(work), w)
}

// sizeSlack covers what depends on where the detour stands: alignment.
const sizeSlack = 64

func (fn *function) DetourSize(r arch.Region, work map[uint64][]arch.Work, w *arch.Writer) (int, error) {
	d, err := fn.Detour(r.Start()&^31, r, work, w)
	if err != nil {
		return 0, err
	}
	return len(d.Code) + sizeSlack, nil
}

func (fn *function) Patch(r arch.Region, detour uint64) ([]byte, error) {
	if r.Tactic() != arch.TacticJump {
		return []byte{opInt3}, nil
	}
	return JumpTo(r.Start(), detour)
}

// opInt3 is the breakpoint instruction.
const opInt3 = 0xcc

// JumpTo encodes jmp rel32 at an address.
func JumpTo(at, target uint64) ([]byte, error) {
	d := int64(target - (at + JumpLen))
	if d != int64(int32(d)) {
		return nil, fmt.Errorf("jump from 0x%x to 0x%x: %w", at, target, unix.ERANGE)
	}
	return binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(d)), nil
}
