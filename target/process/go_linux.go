package process

import (
	"debug/elf"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/goabi"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// goProgram is what is known of a Go program's runtime.
type goProgram struct {
	t       *Target
	layout  goabi.Layout
	runtime arch.GoRuntime
	allgs   uint64 // address of runtime.allgs; 0 if it is not known
	// begun says that the layout fitted a thread that runs a goroutine. A program that
	// has not begun has none yet: its layout is what its version says.
	begun bool
}

// findGo recognises a Go program and validates the layout of its runtime against all
// threads. nil: not a Go program.
func (t *Target) findGo(threads []*ptrace.Thread) (*goProgram, error) {
	main := t.module[0]
	if !main.im.IsGo() {
		return nil, nil
	}
	version := main.im.GoVersion()
	g := &goProgram{t: t}
	tls, err := t.goTLS(main)
	if err != nil {
		return nil, err
	}
	for _, l := range goabi.Layouts(version) {
		if fit, ok := g.try(l, tls, threads); ok && (fit > 0 || version != "") {
			g.begun = fit > 0
			return g, g.findAllgs(main)
		}
	}
	return nil, errno.Errorf(unix.EOPNOTSUPP, "process %d: the runtime of Go version %q has a layout that is not known: probe it with a version of kprobe that knows it",
		t.p.PID(), version)
}

// goTLS finds the offset from the FS base at which the runtime keeps the running g: the
// first load through FS in runtime.morestack.
func (t *Target) goTLS(m module) (int32, error) {
	fns, err := m.im.Lookup("runtime.morestack")
	if err != nil {
		return 0, fmt.Errorf("go program without runtime.morestack: %w", err)
	}
	code := make([]byte, fns[0].Size)
	if err := m.im.ReadAt(fns[0].Addr, code); err != nil {
		return 0, err
	}
	off, ok := native.ThreadLoad(code)
	if !ok {
		return 0, errno.Errorf(unix.EOPNOTSUPP, "runtime.morestack (% x…) does not load g through FS", code[:min(16, len(code))])
	}
	return off, nil
}

// try says whether the layout fits what the threads hold, and how many of them have a g:
// g.m.procid is the thread's id, and the g's stack is one.
func (g *goProgram) try(l goabi.Layout, tls int32, threads []*ptrace.Thread) (fit int, ok bool) {
	for _, th := range threads {
		gp, ok := g.word(th.ThreadPointer() + uint64(tls))
		if th.ThreadPointer() == 0 || !ok || gp == 0 {
			continue // a thread that Go did not make
		}
		m, ok := g.word(gp + uint64(l.M))
		if !ok {
			return fit, false
		}
		id, ok := g.word(m + uint64(l.ProcID))
		st, err := th.Status()
		if !ok || err != nil || int(id) != innermost(st.NSTID, th.TID) {
			return fit, false
		}
		lo, ok1 := g.word(gp + uint64(l.StackLo))
		hi, ok2 := g.word(gp + uint64(l.StackHi))
		if !ok1 || !ok2 || lo >= hi {
			return fit, false
		}
		fit++
	}
	g.layout = l
	g.runtime = arch.GoRuntime{TLS: tls, StackLo: l.StackLo, StackHi: l.StackHi, M: l.M, GoID: l.GoID, ProcID: l.ProcID}
	return fit, true
}

func (g *goProgram) word(addr uint64) (uint64, bool) {
	var b [8]byte
	if addr < procfs.PageSize || g.t.p.ReadMem(addr, b[:]) != nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// findAllgs finds the list of all goroutines, which says where their stacks are.
func (g *goProgram) findAllgs(m module) error {
	if s, err := m.im.Data("runtime.allgs"); err == nil {
		g.allgs = s.Addr + m.bias
		return nil
	}
	addr, err := g.allgsFromCode(m)
	if err != nil {
		return err
	}
	g.allgs = addr
	return nil
}

// allgsFromCode finds runtime.allgs in a stripped program: runtime.forEachG reads its
// length and its pointer, two adjacent words, after taking a lock.
func (g *goProgram) allgsFromCode(m module) (uint64, error) {
	fns, err := m.im.Lookup("runtime.forEachG")
	if err != nil {
		return 0, fmt.Errorf("go program: the list of goroutines can not be found: %w", err)
	}
	code := make([]byte, fns[0].Size)
	if err := m.im.ReadAt(fns[0].Addr, code); err != nil {
		return 0, err
	}
	refs := native.StaticLoads(code, fns[0].Addr)
	for _, r := range refs {
		for _, o := range refs {
			if o == r+8 && g.plausibleAllgs(r+m.bias) {
				return r + m.bias, nil
			}
		}
	}
	return 0, errno.Errorf(unix.EOPNOTSUPP, "go program: runtime.forEachG does not show the list of goroutines")
}

// plausibleAllgs checks a slice header: pointer, length, capacity. A program that has not
// begun has none of them.
func (g *goProgram) plausibleAllgs(addr uint64) bool {
	p, ok1 := g.word(addr)
	n, ok2 := g.word(addr + 8)
	c, ok3 := g.word(addr + 16)
	if !g.begun {
		return ok1 && ok2 && ok3 && p == 0 && n == 0 && c == 0
	}
	return ok1 && ok2 && ok3 && p != 0 && n > 0 && n <= c && c < 1<<32
}

// maxGoroutines bounds what is read of the list.
const maxGoroutines = 1 << 22

// goroutine is what a stopped world shows of one goroutine.
type goroutine struct {
	id     uint64
	sp     uint64 // stack pointer; of a running one that of its thread
	lo, hi uint64 // stack
}

// goroutines lists all that have a stack. Precondition: the world is stopped.
func (g *goProgram) goroutines(threads []*ptrace.Thread) ([]goroutine, error) {
	base, ok1 := g.word(g.allgs)
	n, ok2 := g.word(g.allgs + 8)
	if !ok1 || !ok2 || n > maxGoroutines {
		return nil, fmt.Errorf("goroutines: the list at 0x%x can not be read", g.allgs)
	}
	list := make([]byte, 8*n)
	if err := g.t.p.ReadMem(base, list); err != nil {
		return nil, err
	}
	running := g.running(threads)
	var out []goroutine
	buf := make([]byte, g.layout.GoID+8)
	for i := uint64(0); i < n; i++ {
		gp := binary.LittleEndian.Uint64(list[8*i:])
		if err := g.t.p.ReadMem(gp, buf); err != nil {
			return nil, err
		}
		if !g.used(buf) {
			continue
		}
		r := goroutine{id: g.field(buf, g.layout.GoID), lo: g.field(buf, g.layout.StackLo), hi: g.field(buf, g.layout.StackHi)}
		r.sp = g.field(buf, g.layout.SchedSP)
		if sp, ok := running[gp]; ok {
			r.sp = sp
		}
		if r.sp < r.lo || r.sp > r.hi {
			r.sp = r.lo // not known: all of it may be in use
		}
		if r.lo != 0 && r.hi > r.lo {
			out = append(out, r)
		}
	}
	return out, nil
}

// Statuses of goroutines (runtime/runtime2.go; the last bits of g.atomicstatus).
const (
	goIdle    = 0
	goDead    = 6
	goExtra   = 11 // dead, kept for threads that Go did not make (Go 1.26)
	goScanned = 0x1000
)

// used says whether calls may be in progress on the stack of the g in buf.
func (g *goProgram) used(buf []byte) bool {
	switch uint32(g.field(buf, g.layout.Status)) &^ goScanned {
	case goIdle, goDead, goExtra:
		return false
	}
	return true
}

func (g *goProgram) field(b []byte, off int32) uint64 { return binary.LittleEndian.Uint64(b[off:]) }

// running gives the stack pointers of the goroutines that threads run: 0, not known, for
// one that is interrupted by a signal whose handler runs.
func (g *goProgram) running(threads []*ptrace.Thread) map[uint64]uint64 {
	out := map[uint64]uint64{}
	for _, th := range threads {
		gp, ok := g.word(th.ThreadPointer() + uint64(g.runtime.TLS))
		if !ok || th.ThreadPointer() == 0 || gp == 0 {
			continue
		}
		out[gp] = th.SP()
		m, _ := g.word(gp + uint64(g.layout.M))
		if sig, ok := g.word(m + uint64(g.layout.GSignal)); ok && sig == gp {
			cur, _ := g.word(m + uint64(g.layout.CurG))
			out[cur] = 0
		}
	}
	return out
}

// stacks gives the used part of every goroutine's stack. Precondition: the world is
// stopped.
func (g *goProgram) stacks(s *ptrace.Stopped, f func(lo, hi uint64) error) error {
	gs, err := g.goroutines(s.Threads())
	if err != nil {
		return err
	}
	for _, r := range gs {
		if err := f(r.sp&^7, r.hi); err != nil {
			return err
		}
	}
	return nil
}

// isGo says whether the program's file is one that the Go linker wrote.
func isGo(p *ptrace.Process) bool {
	f, err := p.OpenAt(p.FileName("exe"), 0)
	if err != nil {
		return false
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	return err == nil && (e.Section(".go.buildinfo") != nil || e.Section(".gopclntab") != nil)
}
