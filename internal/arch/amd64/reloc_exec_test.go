//go:build linux && amd64

package amd64

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// The areas that testdata/relocexec.c maps, from a base: 0, where addresses fit 32 bits,
// and highBase.
const (
	execCode = 0x10000000 // originals
	execLand = 0x20000000 // where branches go
	execData = 0x30000000 // what registers point to
	execNear = 0x50000000 // copies 1 GB away
	execFar  = 0x200000000

	execLandLen = 0x10000
	execDataLen = 0x6000
	execCodeOff = 0x800 // of the instruction in its area
	highBase    = 0x7a0000000000
)

// execRun and execResult are struct run and struct result of testdata/relocexec.c.
type execRun struct {
	Regs  [16]uint64
	Flags uint64
	Seed  uint64
	Base  uint64
	PC    [2]uint64
	Slot  uint64
	Len   [2]uint64
	Code  [2][64]byte
}

type execResult struct {
	Regs                       [16]uint64
	Flags, PC, Sig, Code, Addr uint64
	Vec, Mem, SlotMem          uint64
}

// execForm is an instruction to be run, and its copy.
type execForm struct {
	Inst
	code  []byte
	addr  uint64
	base  uint64
	to    uint64
	copy  []byte
	pairs []AddrPair
}

// formKey is what makes two instructions the same form: everything but displacement
// and immediates.
func formKey(in *Inst, code []byte) string {
	b := bytes.Clone(code[:in.Len])
	clear(b[in.DispOff : in.DispOff+in.DispLen])
	clear(b[in.ImmOff : in.ImmOff+in.ImmLen])
	return string(b)
}

// leaves says whether an instruction names something relative to itself or branches.
func leaves(in *Inst) bool { return in.RelLen != 0 || in.Kind != KindPlain }

// notExecuted finds instructions whose effect is not a function of the state that the
// runs set, or that would change what the test program stands on: system calls, time
// and random numbers, segment bases, saved processor state, waiting.
func notExecuted(in *Inst) bool {
	reg := in.ModRM >> 3 & 7
	switch {
	case in.Enc == EncREX2 || in.Kind == KindSyscall || in.Kind == KindXbegin:
		return true
	case in.Enc == EncLegacy && in.Map == MapOne:
		x87state := (in.Opcode == 0xd9 || in.Opcode == 0xdd) && in.Mod() != 3 && reg >= 4
		return x87state || in.Opcode == 0x8e
	case in.Enc == EncLegacy && in.Map == Map0F:
		switch in.Opcode {
		case 0x01, 0x05, 0x31, 0x33, 0x34, 0xa1, 0xa2, 0xa9, 0xb2, 0xb4, 0xb5:
			return true
		case 0xae:
			return !(in.Mod() != 3 && in.Prefix&PrefixOpSize == 0 && (reg == 2 || reg == 3 || reg == 7) ||
				in.Mod() == 3 && in.Prefix == 0 && reg >= 5)
		case 0xc7:
			return reg != 1
		}
	}
	return false
}

// sampleForms collects the forms of real programs: all that leave, and others up to
// most in total, spread evenly.
func sampleForms(t *testing.T, most int) [][]byte {
	t.Helper()
	seen := map[string][]byte{}
	for _, file := range relocBinaries(t) {
		executable(t, file, func(_ uint64, code []byte) { addForms(seen, code) })
	}
	var leaving, others []string
	for _, k := range slices.Sorted(maps.Keys(seen)) {
		if in, _ := Decode(seen[k]); leaves(&in) {
			leaving = append(leaving, k)
		} else {
			others = append(others, k)
		}
	}
	t.Logf("%d forms that branch or name a place, %d others", len(leaving), len(others))
	keys := spread(leaving, most/2)
	keys = append(keys, spread(others, most-len(keys))...)
	forms := make([][]byte, len(keys))
	for i, k := range keys {
		forms[i] = seen[k]
	}
	return forms
}

// tableForms are the instructions of relocCases, twice: one for each base.
func tableForms(t *testing.T) (forms [][]byte) {
	for _, c := range relocCases {
		code := unhex(t, c.in)
		if in, err := Decode(code); err == nil && !notExecuted(&in) {
			forms = append(forms, code, code)
		}
	}
	return forms
}

func addForms(seen map[string][]byte, code []byte) {
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			off++
			continue
		}
		b := code[off : off+int(in.Len)]
		off += len(b)
		if notExecuted(&in) {
			continue
		}
		if k := formKey(&in, b); seen[k] == nil {
			seen[k] = bytes.Clone(b)
		}
	}
}

// spread picks n of keys, evenly.
func spread(keys []string, n int) []string {
	if len(keys) <= n {
		return keys
	}
	var out []string
	for i := range n {
		out = append(out, keys[i*len(keys)/n])
	}
	return out
}

// aim gives the PC-relative field of an instruction at addr a value that names
// something in the areas.
func aim(in *Inst, code []byte, addr, base uint64, r *rand.Rand) {
	end := addr + uint64(in.Len)
	var target uint64
	switch {
	case in.RIPMem:
		target = base + execData + execDataLen/2 + r.Uint64N(0x800)&^31
	case in.RelLen == 1: // outside the instruction, inside its area
		code[in.RelOff] = byte(0x10 + r.UintN(0x60))
		if r.UintN(2) == 0 {
			code[in.RelOff] ^= 0xff
		}
		return
	case in.RelLen == 4 && in.Rel != 0:
		target = base + execLand + r.Uint64N(execLandLen)
	default:
		return
	}
	binary.LittleEndian.PutUint32(code[in.RelOff:], uint32(target-end))
}

// makeForm relocates one instruction, near or far.
func makeForm(code []byte, base uint64, far bool, r *rand.Rand) (*execForm, error) {
	in, err := Decode(code)
	if err != nil {
		return nil, err
	}
	f := &execForm{code: bytes.Clone(code), addr: base + execCode + execCodeOff, base: base, to: base + execNear + execCodeOff}
	if far {
		f.to = base + execFar + execCodeOff
	}
	aim(&in, f.code, f.addr, base, r)
	if f.Inst, err = Decode(f.code); err != nil {
		return nil, err
	}
	a := NewAsm(f.to)
	f.pairs, err = Relocate(a, &f.Inst, f.code, f.addr, &RelocOptions{AllowUndef: true})
	f.copy = a.Bytes()
	return f, err
}

// badStacks are stack pointers to no memory, and to no address.
var badStacks = [2]uint64{0x1000, 1 << 62}

// states is how many states a form runs from.
func (f *execForm) states() int {
	if leaves(&f.Inst) {
		return 16
	}
	return 4
}

// state makes run number n, with the operand of an emulated call outside the place that
// the call pushes to: see Relocate.
func (f *execForm) state(n int, r *rand.Rand) execRun {
	for {
		run := f.anyState(n, r)
		if f.Kind != KindCallInd || !f.HasMem() || f.RIPMem || f.operand(&run)-run.Slot+7 > 14 {
			return run
		}
	}
}

// anyState makes the registers of run number n of a form: of every four, two have memory
// operands aligned, one not, one anything.
func (f *execForm) anyState(n int, r *rand.Rand) execRun {
	run := execRun{Flags: 0x202 | r.Uint64()&0x8d5, Seed: r.Uint64() | 1, Base: f.base, PC: [2]uint64{f.addr, f.to}}
	if r.UintN(16) == 0 {
		run.Flags |= 0x400
	}
	for i := range run.Regs {
		run.Regs[i] = f.value(r)
	}
	if r.UintN(4) != 0 {
		run.Regs[RCX] = r.Uint64N(64)
	}
	for _, p := range []Reg{RSP, RBP, RSI, RDI} {
		run.Regs[p] = f.data(r) &^ 7
	}
	callMem := f.Kind == KindCallInd && f.HasMem()
	if n%4 == 0 && r.UintN(8) == 0 && !callMem {
		run.Regs[RSP] = badStacks[r.UintN(2)]
	}
	if n%4 != 3 {
		f.point(&run, n, r)
	}
	run.Slot = run.Regs[RSP] - 8
	run.Len = [2]uint64{uint64(len(f.code)), uint64(len(f.copy))}
	copy(run.Code[0][:], f.code)
	copy(run.Code[1][:], f.copy)
	return run
}

// data is an address in the data area, away from its ends.
func (f *execForm) data(r *rand.Rand) uint64 {
	return f.base + execData + execDataLen/3 + r.Uint64N(execDataLen/3)
}

func (f *execForm) land(r *rand.Rand) uint64 { return f.base + execLand + r.Uint64N(execLandLen) }

func (f *execForm) value(r *rand.Rand) uint64 {
	switch r.UintN(4) {
	case 0:
		return r.Uint64N(256)
	case 1:
		return f.data(r)
	case 2:
		return f.data(r) &^ 63
	}
	return r.Uint64()
}

// point makes the registers of the operand name memory (or, for a branch through a
// register, code).
func (f *execForm) point(run *execRun, n int, r *rand.Rand) {
	in := &f.Inst
	if in.Kind == KindCallInd || in.Kind == KindJmpInd {
		if in.Mod() == 3 {
			run.Regs[in.RM()] = f.land(r)
			return
		}
	}
	if !in.HasMem() || in.RIPMem {
		return
	}
	ea := f.data(r) &^ 63
	if n%4 == 1 {
		ea += r.Uint64N(64)
	}
	base, index := in.address()
	ea -= uint64(in.disp(f.code))
	if index != byte(RSP) && index != base {
		run.Regs[index] = r.Uint64N(16)
		ea -= run.Regs[index] << (in.SIB >> 6)
	}
	if !in.baseless() {
		run.Regs[base] = ea
	} else if index != byte(RSP) {
		run.Regs[index] = (ea + run.Regs[index]<<(in.SIB>>6)) >> (in.SIB >> 6)
	}
}

// address gives the registers of a memory operand; RSP as index means none.
func (in *Inst) address() (base, index byte) {
	if in.HasSIB {
		return in.SIB&7 | in.Rex&1<<3, in.SIB>>3&7 | in.Rex&2<<2
	}
	return in.RM(), byte(RSP)
}

func (in *Inst) baseless() bool { return in.HasSIB && in.SIB&7 == 5 && in.Mod() == 0 }

// operand is the address of the memory operand.
func (f *execForm) operand(run *execRun) uint64 {
	ea := uint64(f.disp(f.code))
	if f.Prefix&(PrefixFS|PrefixGS) != 0 { // their bases: relocexec.c
		ea += f.base + execData + execDataLen/2
	}
	base, index := f.address()
	if !f.baseless() {
		ea += run.Regs[base]
	}
	if index != byte(RSP) {
		ea += run.Regs[index] << (f.SIB >> 6)
	}
	return ea
}

// back maps a place where the copy stopped to where the original would have; sp is what
// the stack pointer is too low by.
func (f *execForm) back(pc uint64) (orig, sp uint64) {
	for _, p := range f.pairs {
		if p.Copy == pc {
			return p.Orig, p.SP
		}
	}
	if pc == f.to+uint64(len(f.copy)) {
		return f.addr + uint64(f.Len), 0
	}
	return pc, 0
}

// stopped tells where a run ended: a breakpoint is past its byte.
func stopped(o *execResult) uint64 {
	const siKernel = 0x80
	if syscall.Signal(o.Sig) == syscall.SIGTRAP && o.Code == siKernel {
		return o.PC - 1
	}
	return o.PC
}

// normal makes results comparable: the copy's place becomes the original's.
func (f *execForm) normal(o *execResult, isCopy bool) execResult {
	n := *o
	n.PC = stopped(o)
	switch syscall.Signal(n.Sig) {
	case syscall.SIGSEGV, syscall.SIGBUS:
	default:
		n.Addr = 0 // the instruction's own address
	}
	n.Flags &^= 1 << 16 // RF tells what kind of exception it was
	if isCopy {
		var sp uint64
		n.PC, sp = f.back(n.PC)
		n.Regs[RSP] += sp
	}
	return n
}

// differs says how the copy's result is another, "" if it is not.
func (f *execForm) differs(orig, moved *execResult) string {
	a, b := f.normal(orig, false), f.normal(moved, true)
	if _, sp := f.back(stopped(moved)); sp != 0 { // a fault after the push: its slot was written
		a.Mem, b.Mem = 0, 0
	} else {
		a.SlotMem, b.SlotMem = 0, 0
	}
	if a == b {
		return ""
	}
	return fmt.Sprintf("% x at %#x -> % x at %#x\n original %s\n copy     %s", f.code, f.addr, f.copy, f.to, a.dump(), b.dump())
}

func (o *execResult) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v code %d addr %#x pc %#x flags %#x vectors %x memory %x %x\n         ", syscall.Signal(o.Sig), o.Code, o.Addr, o.PC, o.Flags, o.Vec, o.Mem, o.SlotMem)
	for i, v := range o.Regs {
		fmt.Fprintf(&b, " %d:%x", i, v)
	}
	return b.String()
}

// buildRelocExec compiles the program that runs the instructions.
func buildRelocExec(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "relocexec")
	cmd := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fno-stack-protector", "-fcf-protection=none", "-mno-sse",
		"-nostdlib", "-static", "-no-pie", "-Wl,-Ttext-segment=0x6a0000000000", "-Wl,-z,noexecstack", "-o", exe, "testdata/relocexec.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc is needed (package gcc): %v\n%s", err, out)
	}
	return exe
}

// execute runs all runs in a child and gives two results for each. dead is the run that
// ended the child, -1 if it went through.
func execute(t *testing.T, exe string, runs []execRun) (results []execResult, dead int) {
	t.Helper()
	var in bytes.Buffer
	header := []uint64{uint64(len(runs)), uint64(unsafe.Sizeof(execRun{})), uint64(unsafe.Sizeof(execResult{})), highBase}
	if err := errors.Join(binary.Write(&in, binary.LittleEndian, header), binary.Write(&in, binary.LittleEndian, runs)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	inFile, outFile := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(inFile, in.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	size := 64 + 2*len(runs)*int(unsafe.Sizeof(execResult{}))
	if err := os.WriteFile(outFile, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	childErr := runChild(t, exe, inFile, outFile)
	out, err := os.ReadFile(outFile)
	if err != nil {
		t.Fatal(err)
	}
	results = make([]execResult, 2*len(runs))
	if _, err := binary.Decode(out[64:], binary.LittleEndian, results); err != nil {
		t.Fatal(err)
	}
	if childErr == nil {
		return results, -1
	}
	t.Errorf("child: %v", childErr)
	return results, int(binary.LittleEndian.Uint64(out) / 2)
}

func runChild(t *testing.T, exe, inFile, outFile string) error {
	t.Helper()
	in, err := os.Open(inFile)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(outFile, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.ExtraFiles = []*os.File{in, out}
	return cmd.Run()
}

// makeForms relocates the sampled forms, each to one place or, if it names something
// that can be reached from everywhere, to two.
func makeForms(t *testing.T, codes [][]byte, r *rand.Rand) []*execForm {
	var forms []*execForm
	refused := map[string]int{}
	for i, code := range codes {
		in, _ := Decode(code)
		base := uint64(i%2) * highBase
		if in.Prefix&PrefixAddrSize != 0 {
			base = 0
		}
		for _, far := range []bool{false, true} {
			if far && !leaves(&in) {
				continue
			}
			f, err := makeForm(code, base, far, r)
			var re *RelocError
			switch {
			case far && errors.Is(err, ErrReach):
			case errors.As(err, &re):
				refused[re.Reason]++
			case err != nil:
				t.Fatal(err)
			default:
				forms = append(forms, f)
			}
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(refused)) {
		t.Logf("%6d forms refused: %s", refused[reason], reason)
	}
	return forms
}

// TestRelocateExecutes runs instructions of real programs and their copies from the
// same states and compares what came of it: registers, flags, vectors, memory, the
// signal that ended the run and the place, mapped back to the original's.
func TestRelocateExecutes(t *testing.T) {
	const most = 20000
	r := rand.New(rand.NewPCG(1, 2))
	forms := makeForms(t, append(sampleForms(t, most), tableForms(t)...), r)
	var runs []execRun
	var of []*execForm
	for _, f := range forms {
		for n := range f.states() {
			runs, of = append(runs, f.state(n, r)), append(of, f)
		}
	}
	results, dead := execute(t, buildRelocExec(t), runs)
	if dead >= 0 {
		f := of[min(dead, len(of)-1)]
		t.Fatalf("run %d: % x at %#x -> % x at %#x, state %#x", dead, f.code, f.addr, f.copy, f.to, runs[dead].Regs)
	}
	ends, wrong, undone := map[string]int{}, 0, 0
	var suspects []int
	for i := range runs {
		orig, moved := &results[2*i], &results[2*i+1]
		ends[endOf(of[i], orig)]++
		if _, sp := of[i].back(stopped(moved)); sp != 0 {
			undone++
		}
		if of[i].differs(orig, moved) != "" {
			suspects = append(suspects, i)
		}
	}
	for _, i := range suspects {
		if d := differsAlways(t, of[i], runs[i]); d != "" {
			if wrong++; wrong <= 10 {
				t.Errorf("run %d: %s", i, d)
			}
		}
	}
	t.Logf("%d forms, %d runs, %d differ; %d emulated calls faulted after the push", len(forms), len(runs), wrong, undone)
	for _, k := range slices.SortedFunc(maps.Keys(ends), func(a, b string) int { return cmp.Compare(ends[b], ends[a]) }) {
		t.Logf("%8d %s", ends[k], k)
	}
	if ends["went on"] < len(runs)/2 || ends["branched"] < 1000 || undone == 0 {
		t.Errorf("too few runs do something: %v", ends)
	}
}

// differsAlways runs one pair again. What the vector state of a signal frame holds of parts
// that the processor says are in their initial state depends on when the thread was
// scheduled away, so a difference counts only if it is there every time.
func differsAlways(t *testing.T, f *execForm, run execRun) (d string) {
	t.Helper()
	for range 3 {
		results, dead := execute(t, buildRelocExec(t), []execRun{run})
		if dead >= 0 {
			t.Fatalf("% x at %#x: the second run died", f.code, f.addr)
		}
		if d = f.differs(&results[0], &results[1]); d == "" {
			return ""
		}
	}
	return d
}

// endOf says how a run of an original ended.
func endOf(f *execForm, o *execResult) string {
	land := f.base + execLand
	switch pc := stopped(o); {
	case syscall.Signal(o.Sig) != syscall.SIGTRAP:
		return "fault: " + syscall.Signal(o.Sig).String()
	case pc == f.addr+uint64(f.Len):
		return "went on"
	case pc >= land && pc < land+execLandLen || pc&^0xfff == f.addr&^0xfff:
		return "branched"
	}
	return "elsewhere"
}
