package amd64

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// X86 is the x86-64 instruction set as the engine sees it.
var X86 arch.Arch = x86{}

type x86 struct{}

func (x86) Name() string { return "amd64" }

func (x86) Analyse(f *arch.Func) (arch.Function, error) {
	fn := &function{f: f, code: f.Code, entry: f.Addr}
	if f.Reserved > 0 {
		fn.code = withoutPatch(f)
	}
	input := fn.input()
	if err := input.check(); err != nil {
		return nil, err
	}
	fn.findEntry()
	return fn, nil
}

// input is what the analysis of the function is given.
func (fn *function) input() Func {
	f := fn.f
	in := Func{
		Name: f.Name, Addr: f.Addr, Code: fn.code, Entries: f.Entries, Go: f.Go,
		Mem: f.Mem, NoReturn: f.NoReturn, Inside: f.Inside, Returns: f.Returns,
	}
	switch {
	case f.Go && !f.ABI0:
		in.Scratch = goScratch
	case f.Reserved > 0:
		in.Scratch = kernelReturn
	}
	for _, p := range f.Parts {
		in.Parts = append(in.Parts, Part(p))
	}
	return in
}

// goScratch carries nothing over calls and returns in compiled Go code (ABIInternal: R12 and
// R13 are scratch, and so are the arithmetic flags). A few functions of the runtime keep
// registers for their callers (gcWriteBarrier, duffcopy), but never the flags.
const goScratch = Flags | 1<<R12 | 1<<R13

// A function with bytes for a kernel's tracer (arch.Func.Reserved) was compiled for it, and
// so, as the manual of GCC says of -fipa-ra, without knowledge of what its callees leave
// alone: no call in its unit carries more than the convention says. kernelEntry carries
// nothing into such a function and kernelReturn nothing out of it.
const (
	kernelEntry  = Flags | 1<<RAX | 1<<R10 | 1<<R11
	kernelReturn = Flags | 1<<RCX | 1<<RSI | 1<<RDI | 1<<R8 | 1<<R9 | 1<<R10 | 1<<R11
)

// reserved gives the bytes at the function's start that somebody else patches.
func reserved(f *arch.Func) interval.Range {
	lo := f.Addr
	if in, err := Decode(f.Code); err == nil && (isEndbr(&in, f.Code[:in.Len]) || isSealed(&in, f.Code[:in.Len])) {
		lo += uint64(in.Len)
	}
	return interval.Range{Start: lo, End: min(lo+uint64(f.Reserved), f.Addr+uint64(len(f.Code)))}
}

// withoutPatch gives the function's code with nops for its reserved bytes, which may hold a
// call or half of a patch.
func withoutPatch(f *arch.Func) []byte {
	code, r := slices.Clone(f.Code), reserved(f)
	a := NewAsm(0)
	a.Nop(int(r.End - r.Start))
	copy(code[r.Start-f.Addr:], a.Bytes())
	return code
}

// function is one analysed function.
type function struct {
	f       *arch.Func
	code    []byte     // its body's, without what somebody else has patched in
	fl      *Flow      // nil until it is needed, and after Release: see flow
	seen    surveyed   // see survey
	exits   *exits     // nil: not asked for yet
	use     *returnUse // likewise
	planned planned
	entry   uint64 // where an entry probe stands
	// A Go function that checks its stack has room below the stack pointer from
	// entry to grow, where the block that grows it starts; grow is 0 if it
	// does not check.
	grow uint64
	// checked is behind the check of the stack; 0: there is none that all calls come by. It is behind
	// the entry, and grow is 0, where the stack pointer has moved before the check.
	checked uint64
}

// exits is what Exits answers.
type exits struct {
	all []arch.Exit
	err error
}

// planned is what Plan has answered last.
type planned struct {
	points  []uint64
	policy  arch.Policy
	regions []arch.Region
	refused map[uint64]error
	traps   bool // a region has a breakpoint, or would have if that were allowed
	known   bool // Plan was asked
}

// holds says whether the answer is that to another question too.
func (p *planned) holds(points []uint64, policy *arch.Policy) bool {
	return p.known && slices.Equal(p.points, points) && slices.Equal(p.policy.Held, policy.Held) &&
		slices.Equal(p.policy.Unoptimised, policy.Unoptimised) &&
		p.policy.Force == policy.Force && (!p.traps || p.policy.Traps == policy.Traps)
}

// flow is the function's control flow, found out when it is first needed, and again after it
// was released. The analysis can not fail: its input was checked.
func (fn *function) flow() *Flow {
	if fn.fl == nil {
		in := fn.input()
		fn.fl, _ = Analyse(&in)
	}
	return fn.fl
}

func (fn *function) Release() {
	if fn.fl != nil {
		fn.fl.release()
		fn.fl = nil
	}
}

func (fn *function) EntryPoint() uint64 { return fn.entry }

func (fn *function) Check(addr uint64) error {
	fl := fn.flow()
	ok, inside := fl.Boundary(addr)
	switch {
	case ok:
		return nil
	case inside != 0:
		in, _ := fl.Inst(inside)
		return errno.Errorf(unix.EILSEQ, "address 0x%x lies inside the instruction at %s+0x%x (% x): probe one of its ends",
			addr, fn.f.Name, inside-fn.f.Addr, fl.Bytes(inside, int(in.Len)))
	}
	return errno.Errorf(unix.EILSEQ, "address 0x%x holds no instruction of %s that the analysis knows", addr, fn.f.Name)
}

func (fn *function) Exits() ([]arch.Exit, error) {
	if fn.exits == nil {
		all, err := fn.findExits()
		fn.exits = &exits{all, err}
	}
	return slices.Clone(fn.exits.all), fn.exits.err
}

func (fn *function) findExits() ([]arch.Exit, error) {
	all, err := fn.flow().Exits()
	if err != nil {
		return nil, err
	}
	var out []arch.Exit
	for _, e := range all {
		switch e.Kind {
		case ExitRet:
			out = append(out, arch.Exit{Addr: e.Addr})
		case ExitTailJmp, ExitIndirectTail:
			if !fn.f.Go && !fn.f.Tails {
				return nil, fn.tailError(e)
			}
			out = append(out, arch.Exit{Addr: e.Addr, Tail: true})
		case ExitTailJcc, ExitTableJmp, ExitFallThrough:
			return nil, fn.tailError(e)
		}
	}
	if len(out) == 0 {
		return nil, errno.Errorf(unix.EINVAL, "%s has no instruction that returns", fn.f.Name)
	}
	return out, nil
}

func (fn *function) tailError(e Exit) error {
	return errno.Errorf(unix.EOPNOTSUPP, "%s is left by a %s at +0x%x (% x): the value is its callee's; probe the callee's return",
		fn.f.Name, e.Kind, e.Addr-fn.f.Addr, fn.flow().Bytes(e.Addr, 5))
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
	if !fn.planned.holds(points, &policy) { // asked again, as they were sorted then
		points = SortPoints(slices.Clone(points))
		fn.planned = fn.plan(points, policy)
		fn.planned.known = true
	}
	return fn.planned.regions, fn.planned.refused
}

func (fn *function) plan(points []uint64, policy arch.Policy) planned {
	if rs := fn.entryRegion(points, &policy); rs != nil {
		return planned{points: points, policy: policy, regions: rs}
	}
	p := &Regions{Flow: fn.flow(), After: padding(fn.f.After), Policy: policy, Keep: fn.f.Keep}
	if fn.f.Reserved > 0 {
		p.Reserved = reserved(fn.f)
	}
	p.Prohibited = func(addr uint64) bool { return slices.Contains(policy.Held, addr) }
	rs, refused := p.Plan(points)
	out := planned{points: points, policy: policy, refused: map[uint64]error{}, traps: len(refused) > 0}
	for _, r := range rs {
		r.own()
		out.regions = append(out.regions, r)
		out.traps = out.traps || r.Trap != ""
	}
	for a, ref := range refused {
		out.refused[a] = ref
	}
	return out
}

// env tells what is proven at a point, work says whether it is an entry or an exit.
func (fn *function) env(work map[uint64][]arch.ProbeOp) func(uint64) PointEnv {
	return func(a uint64) PointEnv {
		e := PointEnv{Live: func() RegSet { return fn.live(a, work[a]) }, StackFree: -1}
		if fn.f.Go && !fn.f.ABI0 && a == fn.entry {
			e.Scratch = goScratch
		}
		if !fn.f.Go {
			return e
		}
		e.StackFree = 0
		if fn.grow != 0 && a >= fn.entry && a < fn.grow {
			e.StackFree = goRoom
		}
		if a == fn.entry {
			e.Grow = fn.grow
		}
		if in, _, ok := fn.bodyInst(a); fn.checked > fn.entry && a >= fn.checked && ok && in.Kind == KindRet {
			e.StackFree = goRoom // the frame has gone that stood when the stack was checked
		}
		return e
	}
}

// live gives the registers whose values are needed after a point, with what the calling
// conventions say of it.
func (fn *function) live(a uint64, ws []arch.ProbeOp) RegSet {
	l := fn.flow().LiveAt(a)
	if a == fn.entry {
		l &^= Flags // psABI 3.2.1 and Go's ABIInternal: flags carry nothing over a call
	}
	if fn.f.Reserved > 0 && a == fn.entry {
		l &^= kernelEntry
	}
	if fn.f.Reserved > 0 && fn.isReturn(a) {
		l &^= kernelReturn
	}
	if fn.f.Go && !fn.f.ABI0 && (a == fn.entry || hasExit(ws) || fn.atEdge(a)) {
		l &^= goScratch
	}
	return l
}

// isReturn says whether the instruction at a is a return.
func (fn *function) isReturn(a uint64) bool {
	fl := fn.flow()
	id := fl.node(a)
	return id >= 0 && fl.returns(&fl.nodes[id])
}

// atEdge says whether the instruction at a is a return of a Go function, or stands in the
// block that grows its stack and starts it anew.
func (fn *function) atEdge(a uint64) bool {
	fl := fn.flow()
	in, ok := fl.Inst(a)
	return ok && in.Kind == KindRet || fn.grow != 0 && a >= fn.grow && a < fl.End()
}

func hasExit(ws []arch.ProbeOp) bool {
	for i := range ws {
		if ws[i].Role == arch.RoleExit {
			return true
		}
	}
	return false
}

func (fn *function) Detour(addr uint64, r arch.Region, work map[uint64][]arch.ProbeOp, w *arch.CodegenEnv) (*arch.Detour, error) {
	return NewDetour(addr, r.(*Region), work, fn.env(work), w)
}

// sizeSlack covers what depends on where the detour stands: alignment.
const sizeSlack = 64

func (fn *function) DetourSize(r arch.Region, work map[uint64][]arch.ProbeOp, w *arch.CodegenEnv) (int, error) {
	far := *w
	if w.Gate != 0 {
		far.Gate = ^r.Start() // out of reach: a jump there takes most
	}
	d, err := fn.Detour(r.Start()&^31, r, work, &far)
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
		return nil, errno.Errorf(unix.ERANGE, "a jump from 0x%x does not reach 0x%x", at, target)
	}
	b := make([]byte, JumpLen)
	b[0] = 0xe9
	binary.LittleEndian.PutUint32(b[1:], uint32(d))
	return b, nil
}

// Ret adds to Flow.RetAt what Go's check of the stack tells: the entry stands behind it,
// and nothing has been pushed.
func (fn *function) Ret(addr uint64) (int, bool) {
	if addr == fn.entry {
		return 0, true
	}
	return fn.flow().RetAt(addr)
}

// Next finds where work after an instruction is done (see split).
func (fn *function) Next(addr uint64) uint64 {
	if in, ok := fn.flow().Inst(addr); ok && in.falls() {
		return addr + uint64(in.Len)
	}
	return addr
}

// UsesWideVectors is always true of C functions, whose convention passes arguments in whole vector
// registers, and of Go's assembly, which calls functions with such values in registers
// that it knows them to leave alone.
func (fn *function) UsesWideVectors() bool {
	if !fn.f.Go || fn.f.ABI0 {
		return true
	}
	if fn.fl == nil {
		if s := fn.survey(); s.ok {
			return s.wide
		}
	}
	return fn.flow().wide()
}
