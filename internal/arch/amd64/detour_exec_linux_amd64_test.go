package amd64

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/ring"
)

// The arena that testdata/detourexec.c maps, and what the tests put where in it.
const (
	arenaAddr    = 0x500000000000
	arenaRuns    = arenaAddr + 0x1000
	arenaPlain   = arenaAddr + 0x20000 // the function without probes
	arenaProbed  = arenaAddr + 0x21000
	arenaDetours = arenaAddr + 0x22000
	arenaHandler = arenaAddr + 0x40000
	arenaTables  = arenaAddr + 0x42000
	arenaActions = arenaAddr + 0x48000
	arenaData    = arenaAddr + 0x50000
	arenaHole    = arenaAddr + 0x58000 // a page without access
	arenaDataEnd = arenaAddr + 0x60000
	arenaNested  = arenaAddr + 0x68000 // stack pointer of nested runs
	arenaStack   = arenaAddr + 0x78000 // of the others
	arenaActive  = arenaAddr + 0x7f000
	arenaPool    = arenaAddr + 0x80000
	arenaGate    = arenaAddr + 0x180000 // detourexec.c has it too
	arenaCalls   = arenaAddr + 0x190000
	arenaRing    = arenaAddr + 0x200000
)

// detourRun and detourControl are struct run and struct control of testdata/detourexec.c.
type detourRun struct {
	Regs            [16]uint64
	Flags, PC       uint64
	Out             [16]uint64
	OutFlags, Stack uint64
	Like            uint64
}

type detourControl struct {
	NRuns, Runs           uint64
	Mode                  uint64
	Hole                  uint64
	Fault, Trap, Restorer uint64
	Nested                uint64
	Rounds                uint64
	Places, NPlaces       uint64
	Blocked               uint64
	TID, Landing          uint64
	Did, DidNested        uint64
	Wrong, Bad, Spoilt    uint64
	App, Actions          uint64
	Send, Repair          uint64
	G, Jail, Free         uint64
	Handled, FaultPC      uint64
	FaultAddr, Alt        uint64
	GS, Low, UserEnd      uint64
	Called, Context       uint64
	Stepping              uint64
	Stubs, NStubs         uint64
	StubWord              uint64
	Search, SearchEnd     uint64
}

// Modes of testdata/detourexec.c.
const (
	modePlain = iota
	modeStorm
	modeSteps
)

// detourChild is the built test program and what it tells of its threads.
type detourChild struct {
	exe     string
	rseqOff int32
	gOff    int32 // of the word that stands for Go's g
	noRseq  int32 // of an area for rseq(2) that is not registered
	farGate uint64
	kernel  [5]uint64 // functions of arch.Kernel, in its order
}

func buildDetourChild(t *testing.T) *detourChild {
	t.Helper()
	exe, err := cbuild.Build(os.DirFS("testdata"), ".", "detourexec", "-O2", "-Wall", "-Wextra", "-Werror", "-fcf-protection=none", "-no-pie")
	if err != nil {
		t.Fatalf("gcc and glibc 2.35 or later are needed (packages gcc, libc6-dev): %v", err)
	}
	c := &detourChild{exe: exe}
	out, err := exec.Command(c.exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(out), &c.rseqOff, &c.gOff, &c.noRseq, &c.farGate,
		&c.kernel[0], &c.kernel[1], &c.kernel[2], &c.kernel[3], &c.kernel[4]); err != nil {
		t.Fatal(err)
	}
	return c
}

// arena is the image of the child's arena.
type arena struct {
	t      *testing.T
	child  *detourChild
	mem    []byte
	w      arch.CodegenEnv
	ctl    detourControl
	runs   []detourRun
	detour []*arch.Detour
	next   uint64
	faults []FaultEntry
	traps  [][2]uint64
	// beside is called over and over while the child runs, with its arena.
	beside func(mem []byte)
	// reserved is arch.Func.Reserved.
	reserved int
}

// glibcTID is the offset of the thread id in glibc's struct pthread.
const glibcTID = 0x2d0

func newArena(t *testing.T, c *detourChild) *arena {
	t.Helper()
	l, err := ring.NewLayout(ring.Config{CPUs: 2, Events: 8, DataSize: 1 << 18})
	if err != nil {
		t.Fatal(err)
	}
	return &arena{
		t: t, child: c, next: arenaDetours, mem: make([]byte, arenaRing-arenaAddr+l.Size()),
		w: arch.CodegenEnv{Ring: arenaRing, Layout: l, HasRseq: true, RseqOff: c.rseqOff, TID: arch.TIDThread, TIDOff: glibcTID, Features: hostRDPID(t)},
	}
}

func hostRDPID(t testing.TB) uint64 {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(" rdpid ")) {
		return 0
	}
	return FeatureRDPID
}

func (a *arena) at(addr uint64) []byte { return a.mem[addr-arenaAddr:] }

func (a *arena) put64(addr uint64, vs ...uint64) {
	for i, v := range vs {
		binary.LittleEndian.PutUint64(a.at(addr+8*uint64(i)), v)
	}
}

func (a *arena) get64(addr uint64) uint64 { return binary.LittleEndian.Uint64(a.at(addr)) }

// probe puts code at both places, and probes on the second one. work is by offset.
func (a *arena) probe(code []byte, work map[uint64][]arch.ProbeOp, p arch.Policy) {
	a.t.Helper()
	copy(a.at(arenaPlain), code)
	copy(a.at(arenaProbed), code)
	fn, err := X86.Analyse(&arch.Func{Name: "f", Addr: arenaProbed, Code: code, Go: a.w.Go != nil, After: bytes.Repeat([]byte{0xcc}, 8), Reserved: a.reserved})
	if err != nil {
		a.t.Fatal(err)
	}
	byAddr := map[uint64][]arch.ProbeOp{}
	var points []uint64
	for off, w := range work {
		byAddr[arenaProbed+off] = w
		points = append(points, arenaProbed+off)
	}
	regions, refused := fn.Plan(points, p)
	if len(refused) > 0 {
		a.t.Fatalf("refused: %v", refused)
	}
	for _, r := range regions {
		a.install(fn, r, byAddr)
	}
}

func (a *arena) install(fn arch.Function, r arch.Region, work map[uint64][]arch.ProbeOp) {
	a.t.Helper()
	size, err := fn.DetourSize(r, work, &a.w)
	if err != nil {
		a.t.Fatal(err)
	}
	d, err := fn.Detour(a.next, r, work, &a.w)
	if err != nil {
		a.t.Fatal(err)
	}
	if len(d.Code) > size {
		a.t.Errorf("detour of %d bytes, %d were promised", len(d.Code), size)
	}
	patch, err := fn.Patch(r, a.next)
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(d.Addr), d.Code)
	copy(a.at(r.Start()), patch)
	a.detour = append(a.detour, d)
	a.next = (a.next + uint64(len(d.Code)) + 63) &^ 63
	if a.next > arenaHandler {
		a.t.Fatalf("detours take %d bytes", a.next-arenaDetours)
	}
	a.faults = AppendFaultEntries(a.faults, d)
	if r.Tactic() != arch.TacticJump {
		a.traps = append(a.traps, [2]uint64{r.Start(), d.Addr})
	}
}

// handler installs the resident handler over the default dispositions.
func (a *arena) handler() {
	a.t.Helper()
	a.handlerFor(true)
}

// handlerFor is handler for a program whose own handlers may return to what faulted, or never do.
func (a *arena) handlerFor(resumes bool) {
	a.t.Helper()
	const actionSize, actionHandler = 40, 8
	h, err := NewHandler(arenaHandler, HandlerEnv{
		Faults: arenaTables, Traps: arenaTables + 16, Actions: arenaActions, Hooked: arenaTables + 32,
		ActionSize: actionSize, ActionHandler: actionHandler, Resumes: resumes,
	})
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(arenaHandler), h.Code)
	a.ctl.Fault, a.ctl.Trap, a.ctl.Restorer = h.Entry, h.Trap, h.Return
	slices.SortFunc(a.faults, func(x, y FaultEntry) int { return int(int64(x.Lo - y.Lo)) })
	var table []byte
	for _, e := range a.faults {
		table = e.Append(table)
	}
	const faultsAt, trapsAt = arenaTables + 64, arenaTables + 0x5000
	copy(a.at(faultsAt), table)
	a.put64(arenaTables, faultsAt, uint64(len(a.faults)), trapsAt, uint64(len(a.traps)), uint64(len(a.traps)))
	slices.SortFunc(a.traps, func(x, y [2]uint64) int { return int(int64(x[0] - y[0])) })
	for i, e := range a.traps {
		a.put64(trapsAt+uint64(i)*TrapEntrySize, e[0], e[1])
	}
}

// add appends a state, run without and with probes.
func (a *arena) add(regs [16]uint64, flags uint64) {
	plain := detourRun{Regs: regs, Flags: flags, PC: arenaPlain}
	probed := plain
	probed.PC = arenaProbed
	probed.Like = a.runAddr(len(a.runs))
	a.runs = append(a.runs, plain, probed)
}

var detourRunSize = uint64(binary.Size(detourRun{}))

func (a *arena) runAddr(i int) uint64 { return arenaRuns + uint64(i)*detourRunSize }

// nested makes a state the one that signals run, and no others. It is added last.
func (a *arena) nested(regs [16]uint64, flags uint64) {
	regs[RSP] = arenaNested
	a.add(regs, flags)
	a.ctl.Nested = a.runAddr(len(a.runs) - 1)
}

// run executes the child, which must come to its end.
func (a *arena) run() {
	a.t.Helper()
	if out, err := a.start(); err != nil {
		a.t.Fatalf("child: %v after %d runs\n%s", err, a.ctl.Did, out)
	}
}

// start executes the child and takes in what it left.
func (a *arena) start() (out []byte, runErr error) {
	a.t.Helper()
	a.ctl.NRuns, a.ctl.Runs, a.ctl.Spoilt = uint64(len(a.runs)), arenaRuns, a.runAddr(len(a.runs))
	if a.ctl.Nested != 0 {
		a.ctl.NRuns -= 2
	}
	if a.runAddr(len(a.runs)+1) > arenaPlain {
		a.t.Fatalf("%d runs", len(a.runs))
	}
	a.encode(arenaAddr, &a.ctl)
	a.encode(arenaRuns, a.runs)
	file := filepath.Join(a.t.TempDir(), "arena")
	if err := os.WriteFile(file, a.mem, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if a.beside != nil {
		defer a.trace(file)()
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	out, runErr = exec.CommandContext(ctx, a.child.exe, file).CombinedOutput()
	var err error
	if a.mem, err = os.ReadFile(file); err != nil {
		a.t.Fatal(err)
	}
	a.decode(arenaAddr, &a.ctl)
	a.decode(arenaRuns, a.runs)
	if a.ctl.Wrong != 0 {
		var have, want detourRun
		a.decode(a.ctl.Spoilt, &have)
		a.decode(have.Like, &want)
		a.t.Fatalf("a run with a probe came out otherwise\nwant %#x\nhave %#x", want, have)
	}
	return out, runErr
}

// trace maps the arena's file and calls beside until the function that it gives is called.
func (a *arena) trace(file string) (stop func()) {
	a.t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, len(a.mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	f.Close()
	if err != nil {
		a.t.Fatal(err)
	}
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !end.Load() {
			a.beside(mem)
			runtime.Gosched()
		}
	}()
	return func() {
		end.Store(true)
		<-done
		unix.Munmap(mem)
	}
}

func (a *arena) encode(addr uint64, v any) {
	if _, err := binary.Encode(a.at(addr), binary.LittleEndian, v); err != nil {
		a.t.Fatal(err)
	}
}

func (a *arena) decode(addr uint64, v any) {
	if _, err := binary.Decode(a.at(addr), binary.LittleEndian, v); err != nil {
		a.t.Fatal(err)
	}
}

// arenaRecord is a record as it stands in the ring.
type arenaRecord struct {
	event, tid uint32
	tsc        uint64
	locked     bool
	rec        []byte
}

// records reads all whole records, in the order of their time.
func (a *arena) records() (out []arenaRecord) {
	a.t.Helper()
	l := a.w.Layout
	for shard := range l.Shards() {
		base := arenaRing + l.ShardOff(shard)
		head := a.get64(base+ring.ShHead) & (1<<48 - 1)
		for pos := uint64(0); pos < head; {
			at := base + l.DataOff() + 8*pos
			w0 := a.get64(at)
			units := ring.UnitsOf(w0)
			if units < 2 || pos+units > head {
				a.t.Fatalf("shard %d: record of %d units at %d of %d", shard, units, pos, head)
			}
			out = append(out, arenaRecord{
				event: uint32(ring.EventOf(w0)), tid: uint32(w0 >> 32), tsc: a.get64(at + 8),
				locked: l.IsLocked(shard), rec: a.at(at)[:8*units],
			})
			pos += units
		}
	}
	slices.SortFunc(out, func(x, y arenaRecord) int { return int(int64(x.tsc - y.tsc)) })
	return out
}

// counted sums a counter over all shards.
func (a *arena) counted(event int, field uint64) (n uint64) {
	for shard := range a.w.Layout.Shards() {
		n += a.get64(arenaRing + a.w.Layout.ShardOff(shard) + a.w.Layout.CounterOff(event) + field)
	}
	return n
}

// fillData writes words, pointers into the area and text; what stands before the hole is
// text without an end.
func (a *arena) fillData(r *rand.Rand) {
	for p := uint64(arenaData); p < arenaDataEnd; p += 8 {
		switch r.UintN(4) {
		case 0:
			a.put64(p, a.pointer(r))
		case 1:
			a.put64(p, r.Uint64())
		default:
			a.put64(p, 0x6161616161616161+r.Uint64N(0x0101010101010101))
		}
	}
	for i := range a.at(arenaHole - 0x40)[:0x40] {
		a.at(arenaHole - 0x40)[i] = byte('A' + i%26)
	}
	for i := range a.at(arenaData)[:0x3000] { // text longer than the limit of a string
		a.at(arenaData)[i] = byte('a' + i%23)
	}
}

// pointer makes an address: of data, near the hole, in it, or of nothing.
func (a *arena) pointer(r *rand.Rand) uint64 {
	switch r.UintN(12) {
	case 0:
		return arenaHole - r.Uint64N(16)
	case 1:
		return arenaHole + r.Uint64N(4096)
	case 2:
		return []uint64{0, 8, 1 << 62, ^uint64(0), ^uint64(7)}[r.UintN(5)]
	case 3:
		return arenaHole + 4096 - r.Uint64N(16)
	}
	return arenaData + 0x2000 + r.Uint64N(0x5800)
}

// state makes random registers.
func (a *arena) state(r *rand.Rand) (regs [16]uint64, flags uint64) {
	for i := range regs {
		switch r.UintN(4) {
		case 0:
			regs[i] = r.Uint64()
		case 1:
			regs[i] = r.Uint64N(300)
		default:
			regs[i] = a.pointer(r)
		}
	}
	regs[RSP] = arenaStack + 8*r.Uint64N(64)
	return regs, 0x202 | r.Uint64()&0x8d5
}

// lockless says whether records are written inside of restartable sequences.
func (a *arena) lockless() bool { return a.w.HasRseq && a.w.RseqOff == a.child.rseqOff }
