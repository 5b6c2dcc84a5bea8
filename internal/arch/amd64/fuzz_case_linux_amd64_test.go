package amd64

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// fuzzHow says how a case is run; what a number means must not change, for finds are kept.
type fuzzHow uint64

const (
	howHigh   fuzzHow = 1 << 0  // at highBase
	howFar    fuzzHow = 1 << 1  // breakpoints' detours 8 GB away
	howRecord fuzzHow = 1 << 2  // probes record, and do not only count
	howFirst  fuzzHow = 7 << 3  // the first point's instruction
	howMore   fuzzHow = 3 << 6  // more points
	howAsIs   fuzzHow = 1 << 63 // displacements are taken as they are
)

func (h fuzzHow) first() int { return int(h & howFirst >> 3) }
func (h fuzzHow) more() int  { return int(h & howMore >> 6) }

// base is where the areas are counted from.
func (h fuzzHow) base() uint64 {
	if h&howHigh != 0 {
		return highBase
	}
	return 0
}

const flagAC = 1 << 18

const (
	maxFuzzInsts = 8
	maxFuzzCode  = 90
)

// fuzzCase is some code, where it stands, and the state that it is run from.
type fuzzCase struct {
	seed  uint64
	how   fuzzHow
	addr  uint64
	code  []byte
	insts []fuzzInst
	job   fuzzJob // of the original
	fn    arch.Function
	flow  *Flow
	// aligned: nothing makes the stack pointer odd.
	aligned bool
	round   uint64 // see find
}

type fuzzInst struct {
	Inst
	off  int
	code []byte
}

// newFuzzCase makes a case of code; nil if there is nothing to run in it.
func newFuzzCase(code []byte, seed uint64, how fuzzHow) *fuzzCase {
	c := &fuzzCase{seed: seed, how: how, addr: how.base() + fuzzCode + execCodeOff}
	c.take(code)
	if len(c.insts) == 0 {
		return nil
	}
	if how&howAsIs == 0 {
		c.aim(rand.New(rand.NewPCG(seed, 1)))
	}
	var err error
	f := &arch.Func{Name: "f", Addr: c.addr, Code: c.code, After: slices.Repeat([]byte{0xcc}, 8)}
	if c.fn, err = X86.Analyse(f); err != nil {
		return nil
	}
	c.flow = c.fn.(*function).flow()
	if !c.state(rand.New(rand.NewPCG(seed, 2))) {
		return nil
	}
	return c
}

// take keeps what decodes of code, up to some bytes, without what is not run.
func (c *fuzzCase) take(code []byte) {
	for len(c.insts) < maxFuzzInsts && len(code) > 0 {
		in, err := Decode(code)
		if err != nil {
			code = code[1:]
			continue
		}
		b := code[:in.Len]
		code = code[in.Len:]
		if in.Kind == KindFar && len(c.insts) > 0 { // what it makes of words below the red zone is past foreseeing
			continue
		}
		if len(c.code)+len(b) > maxFuzzCode || hazard(&in) || in.Prefix&PrefixAddrSize != 0 && c.how&howHigh != 0 {
			continue
		}
		c.insts = append(c.insts, fuzzInst{in, len(c.code), nil})
		c.code = append(c.code, b...)
	}
	for i := range c.insts {
		in := &c.insts[i]
		in.code = c.code[in.off : in.off+int(in.Len)]
		if setsFS(&in.Inst) {
			c.how &^= howRecord // which finds the thread's id by its base
		}
	}
}

// setsFS finds what may change the FS base: loads of the segment register, and wrfsbase.
func setsFS(in *Inst) bool {
	reg := in.ModRM >> 3 & 7
	switch {
	case in.Enc != EncLegacy:
		return false
	case in.Map == MapOne:
		return in.Opcode == 0x8e && reg == 4
	case in.Map == Map0F:
		return in.Opcode == 0xa1 || in.Opcode == 0xb4 || in.Opcode == 0xae && in.Mod() == 3 && reg == 2
	}
	return false
}

// aim gives PC-relative fields values that name something in the areas.
func (c *fuzzCase) aim(r *rand.Rand) {
	for i := range c.insts {
		in := &c.insts[i]
		end := c.addr + uint64(in.off) + uint64(in.Len)
		inside := c.addr + uint64(c.insts[r.IntN(len(c.insts))].off)
		if back := inside <= end; back && r.UintN(4) != 0 { // it may loop
			inside = c.addr + uint64(c.insts[i+r.IntN(len(c.insts)-i)].off)
		}
		target := c.how.base() + fuzzLand + r.Uint64N(fuzzLandLen)
		switch {
		case in.RIPMem:
			target = c.how.base() + fuzzData + fuzzDataLen/4 + r.Uint64N(fuzzDataLen/2)&^uint64(r.UintN(2)*31)
		case r.UintN(3) == 0:
			target = inside
		case r.UintN(12) == 0:
			target = end
		}
		switch in.RelLen {
		case 1:
			if r.UintN(4) != 0 {
				in.code[in.RelOff] = byte(inside - end)
			}
		case 4:
			binary.LittleEndian.PutUint32(in.code[in.RelOff:], uint32(target-end))
		}
		in.Inst, _ = Decode(in.code)
	}
}

// state makes the job of the original, with the registers to begin with; false: nothing could
// be concluded from it.
func (c *fuzzCase) state(r *rand.Rand) bool {
	j := &c.job
	j.PC, j.Seed = c.addr, r.Uint64()|1
	j.Memory = j.Seed
	j.Flags = 0x202 | r.Uint64()&0x8d5
	if r.UintN(16) == 0 {
		j.Flags |= 0x400
	}
	if r.UintN(16) == 0 {
		j.Flags |= []uint64{0x200000, 0x4000, 0x40000}[r.UintN(3)] // ID, NT, AC
	}
	for i := range j.Regs {
		j.Regs[i] = c.value(r, pointers>>i&1 != 0)
	}
	j.Regs[RSP] = c.how.base() + fuzzStack + fuzzStkLen/2 + 8*r.Uint64N(32)
	if r.UintN(3) == 0 {
		j.Regs[RBP] = j.Regs[RSP] + 8*r.Uint64N(16)
	}
	for i := range c.insts {
		in := &c.insts[i]
		if (in.Kind == KindCallInd || in.Kind == KindJmpInd) && in.Mod() == 3 && in.RM() != byte(RSP) {
			j.Regs[in.RM()] = c.how.base() + fuzzLand + r.Uint64N(fuzzLandLen)
		}
	}
	return c.scratch() && j.put(c.addr, c.code) == nil
}

// value is a register's: an address of data or a small number, or anything.
func (c *fuzzCase) value(r *rand.Rand, pointer bool) uint64 {
	data := c.how.base() + fuzzData + fuzzDataLen/4 + r.Uint64N(fuzzDataLen/2)
	switch n := r.UintN(12); {
	case n == 0:
		return r.Uint64()
	case n == 1:
		return data
	case n == 2:
		return uint64(int64(int8(r.Uint64())))
	case pointer && n < 6:
		return data &^ 63
	case pointer:
		return data &^ 7
	}
	return r.Uint64N(64)
}

// scratch settles from where on the stack must be the same: from the red zone's end where no
// probe's work is done with another stack pointer. false: nobody knows.
func (c *fuzzCase) scratch() bool {
	moves, wild, inner := false, false, false
	for i := range c.insts {
		in := &c.insts[i]
		if in.Effects().Writes&Set(RSP) != 0 {
			moves = true
			wild = wild || !small(&in.Inst)
		}
		to, ok := in.Target(c.addr + uint64(in.off))
		inner = inner || ok && !in.RIPMem && to-c.addr < uint64(len(c.code))
	}
	if wild { // a probe further on would use whatever the stack pointer names then
		c.how &^= howFirst | howMore
	}
	c.aligned = !moves
	once := c.how&(howFirst|howMore) == 0 && !inner
	c.job.Keep = c.job.Regs[RSP] - redZone
	switch {
	case !moves || once:
	case wild:
		return false
	case inner: // it may run any number of times
		c.job.Keep = c.how.base() + fuzzStack + fuzzStkLen
	default:
		c.job.Keep += 2 * redZone
	}
	return true
}

// small says whether an instruction moves the stack pointer by some bytes only.
func small(in *Inst) bool {
	switch in.Kind {
	case KindCall, KindCallInd, KindSyscall:
		return true
	case KindRet:
		return in.ImmLen == 0
	}
	op := in.Opcode
	return in.Enc == EncLegacy && in.Map == MapOne && (op >= 0x50 && op <= 0x5f && op != 0x5c || op == 0x68 || op == 0x6a || op == 0x9c || op == 0x9d)
}

// points are the places that get probes.
func (c *fuzzCase) points() []uint64 {
	var pts []uint64
	for i := range c.how.more() + 1 {
		in := &c.insts[(c.how.first()+i)%len(c.insts)]
		pts = append(pts, c.addr+uint64(in.off))
	}
	return SortPoints(pts)
}

// fuzzForm is the case with probes, by one tactic.
type fuzzForm struct {
	tactic  arch.Tactic
	job     fuzzJob
	pts     []uint64
	start   bool // the first instruction has a point
	at      uint64
	code    []byte // of the detours, which lie at at
	patched []byte // the case's code
	pairs   []arch.Pair
	faults  []FaultEntry
	traps   [][2]uint64
}

// form plans and places the probes. A nil form: there is none by this tactic.
func (c *fuzzCase) form(w *arch.CodegenEnv, tactic arch.Tactic) (*fuzzForm, error) {
	work := map[uint64][]arch.ProbeOp{}
	pts := c.points()
	for i, p := range pts {
		work[p] = []arch.ProbeOp{{Event: i, Count: true}}
		if c.how&howRecord != 0 {
			work[p] = append(work[p], arch.ProbeOp{Event: 5, Prog: fuzzProgram})
		}
	}
	f := &fuzzForm{tactic: tactic, job: c.job, at: c.how.base() + fuzzNear + execCodeOff, pts: pts, patched: slices.Clone(c.code)}
	if tactic != arch.TacticJump && c.how&howFar != 0 {
		f.at = c.how.base() + fuzzFar + execCodeOff
	}
	regions, _ := c.fn.Plan(pts, arch.Policy{Force: tactic})
	if len(regions) == 0 {
		return nil, nil
	}
	for _, r := range regions {
		d, err := c.fn.Detour(f.at+uint64(len(f.code)), r, work, w)
		if err != nil {
			return nil, nil // too far
		}
		patch, err := c.fn.Patch(r, d.Addr)
		if err != nil {
			return nil, err
		}
		f.place(c.addr, r, d, patch)
	}
	f.job.NPieces = 0
	if err := errors.Join(f.job.put(c.addr, f.patched), f.job.put(f.at, f.code)); err != nil {
		return nil, err
	}
	return f, f.job.tables(f.faults, f.traps)
}

// place adds a detour, and the patch at its region in the code at addr.
func (f *fuzzForm) place(addr uint64, r arch.Region, d *arch.Detour, patch []byte) {
	off := int(r.Start() - addr)
	f.patched = append(f.patched, slices.Repeat([]byte{opInt3}, max(0, off+len(patch)-len(f.patched)))...)
	copy(f.patched[off:], patch)
	f.code = append(f.code, d.Code...)
	f.pairs = append(f.pairs, d.Pairs...)
	f.start = f.start || r.Holds(addr) && f.pts[0] == addr
	for _, p := range d.Pairs {
		f.faults = append(f.faults, FaultEntry{Lo: p.Copy, Hi: p.CopyEnd, To: p.Orig, Moved: true, SP: p.SP})
	}
	for _, x := range d.Fixups {
		f.faults = append(f.faults, FaultEntry{Lo: x.At, Hi: x.At + 1, To: x.To})
	}
	if f.tactic != arch.TacticJump {
		f.traps = append(f.traps, [2]uint64{r.Start(), d.Addr})
	}
}

// fuzzProgram records two registers and a word of the stack.
var fuzzProgram = &fetch.Program{Fixed: 24, Args: []fetch.Arg{
	{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Size: 8},
	{Store: fetch.StoreValue, Base: fetch.Base{Kind: fetch.BaseStack, N: 1}, Size: 8, Off: 8},
	{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RBX)}, Derefs: []int64{0}, Size: 8, Off: 16},
}}

// Signals that end a run, beside those of faults.
const (
	sigTimer = uint64(syscall.SIGPROF)
	sigSys   = uint64(syscall.SIGSYS)
)

// at is the instruction at an address of the original, nil if there is none.
func (c *fuzzCase) instAt(pc uint64) *fuzzInst {
	for i := range c.insts {
		if in := &c.insts[i]; c.addr+uint64(in.off) == pc {
			return in
		}
	}
	return nil
}

// ends makes the result of a run comparable with that of another form. f is nil for the
// original.
func (c *fuzzCase) ends(o fuzzResult, f *fuzzForm) fuzzResult {
	o.Hits, o.Traps, o.All = 0, 0, 0
	o.Flags &^= 1 << 16 // RF tells what kind of exception it was
	if o.Sig == sigSys {
		if f != nil {
			o.PC, o.Addr = c.behind(f, o.PC), c.behind(f, o.Addr)
		}
		o.Regs[RCX] = 0 // the address after syscall
	}
	if in := c.instAt(o.PC); in != nil && in.Kind == KindCallInd && o.Sig != uint64(syscall.SIGTRAP) {
		o.Data, o.Stack = o.DataSlot, o.StackSlot // a fault after the push
	}
	o.DataSlot, o.StackSlot = 0, 0
	return o
}

// behind maps the address behind a copied system call to that behind the original.
func (c *fuzzCase) behind(f *fuzzForm, pc uint64) uint64 {
	for _, p := range f.pairs {
		if in := c.instAt(p.Orig); in != nil && p.CopyEnd == pc {
			return p.Orig + uint64(in.Len)
		}
	}
	return pc
}

// differs tells what differs in two comparable results, "" if nothing does.
func differs(a, b *fuzzResult) string {
	if *a == *b {
		return ""
	}
	var s strings.Builder
	cmp := func(name string, x, y uint64) {
		if x != y {
			fmt.Fprintf(&s, "  %-8s %#x, probed %#x\n", name, x, y)
		}
	}
	for i := range a.Regs {
		cmp(setNames(1<<i), a.Regs[i], b.Regs[i])
	}
	for i, n := range []string{"x87", "xmm", "ymm", "masks", "zmm"} {
		cmp(n, a.Vec[i], b.Vec[i])
	}
	cmp("flags", a.Flags, b.Flags)
	cmp("rip", a.PC, b.PC)
	cmp("signal", a.Sig, b.Sig)
	cmp("si_code", a.Code, b.Code)
	cmp("si_addr", a.Addr, b.Addr)
	cmp("syscall", a.Nr, b.Nr)
	cmp("cs, ss", a.CS, b.CS)
	cmp("segments", a.Segments, b.Segments)
	cmp("fs base", a.FS, b.FS)
	cmp("gs base", a.GS, b.GS)
	cmp("data", a.Data, b.Data)
	cmp("stack", a.Stack, b.Stack)
	return s.String()
}
