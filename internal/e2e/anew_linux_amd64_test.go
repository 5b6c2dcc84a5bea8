package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// addTo adds events by their definitions.
func addTo(t *testing.T, core *kprobes.Core, o *kprobes.AddOptions, defs ...string) []*kprobes.Event {
	t.Helper()
	var ds []*event.Def
	for _, text := range defs {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, d)
	}
	evs, err := core.Add(ds, o)
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

// bytesAt reads a process's memory, behind the tracer's back.
func bytesAt(t *testing.T, pid int, addr uint64, n int) []byte {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, int64(addr)); err != nil {
		t.Fatal(err)
	}
	return b
}

// counts compares what an event has counted when its Core is closed.
func counts(t *testing.T, core *kprobes.Core, want uint64, evs ...*kprobes.Event) {
	t.Helper()
	for _, e := range evs {
		if n := core.Counts(e); n.Hits != want || n.Missed+n.Lost != 0 {
			t.Errorf("event %s: %+v, want %d hits", e.Name, n, want)
		}
	}
}

// The patches go without a word, since the object is unmapped and mapped again at the same address before anybody
// looks, or since its page is thrown away: the probes are armed anew and count all that comes then, and a tracer that
// ends leaves nothing.
func TestArmedAnew(t *testing.T) {
	lib := testprog.Build(t, "libdlone")
	for name, text := range map[string]process.TextMode{"private": process.TextPrivate, "shared": process.TextShared} {
		for _, how := range []string{"again " + lib, "discard"} {
			t.Run(name+" "+strings.Fields(how)[0], func(t *testing.T) {
				p := program(t, "dl")
				at := right(t, p, "open "+lib)["addr"]
				before := stateOf(t, p.PID)
				core := openWith(t, p, &process.TargetOptions{Text: text})
				evs := addTo(t, core, nil, "p:a "+lib+":lib_work", "r:b "+lib+":lib_work")
				right(t, p, "call 5")
				var seen uint64
				k := &kprobes.Kprobe{SymbolName: "lib_work", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { seen++; return 0 }}
				if err := core.RegisterKprobe(k); err != nil {
					t.Fatal(err)
				}
				plain := testprog.Start(t, testprog.Build(t, "dl"))
				orig := bytesAt(t, plain.PID, right(t, plain, "open "+lib)["addr"], 5)
				if bytes.Equal(bytesAt(t, p.PID, at, 5), orig) {
					t.Fatal("no patch stands")
				}
				for range 3 {
					if n := right(t, p, how); n["addr"] != at {
						t.Fatalf("the object is at 0x%x, was at 0x%x", n["addr"], at)
					}
					within(t, "the patch", func() bool {
						if err := core.Sync(); err != nil {
							t.Fatal(err)
						}
						return !bytes.Equal(bytesAt(t, p.PID, at, 5), orig)
					})
					right(t, p, "call 7")
				}
				if err := core.Close(nil); err != nil {
					t.Error(err)
				}
				counts(t, core, 5+3*7, evs...)
				if seen != 3*7 {
					t.Errorf("the handler has seen %d calls", seen)
				}
				right(t, p, "call 5")
				before.same(t)
			})
		}
	}
}

// putBack writes a program's own bytes over the patch at an address, and waits until a patch stands there again.
func putBack(t *testing.T, core *kprobes.Core, mem *os.File, site process.Patched) {
	t.Helper()
	overwrite(t, mem, site)
	have := make([]byte, len(site.Orig))
	within(t, "the patch", func() bool {
		if err := core.Sync(); err != nil {
			t.Fatal(err)
		}
		if _, err := mem.ReadAt(have, int64(site.Addr)); err != nil {
			t.Fatal(err)
		}
		return !bytes.Equal(have, site.Orig)
	})
}

func overwrite(t *testing.T, mem *os.File, site process.Patched) {
	t.Helper()
	if _, err := mem.WriteAt(site.Orig, int64(site.Addr)); err != nil {
		t.Fatal(err)
	}
}

// While calls wait in a function, with their return addresses replaced, its own bytes are put back: the probes are
// armed anew, the calls return and are counted.
func TestArmedAnewUnderCalls(t *testing.T) {
	p := program(t, "leaver")
	before := stateOf(t, p.PID)
	core := openWith(t, p, nil)
	evs := addTo(t, core, &kprobes.AddOptions{Trampoline: true, Late: true}, "p:a inside", "r:b inside")
	right(t, p, "call 3")
	right(t, p, "hold 4")
	mem, site := patchAt(t, p.PID, evs[0].Place().Addr)
	putBack(t, core, mem, site)
	right(t, p, "call 3")
	right(t, p, "free")
	right(t, p, "call 3")
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	counts(t, core, 3+4+3+3, evs...)
	right(t, p, "call 3")
	before.same(t)
}

// Somebody puts the program's own bytes back again and again: he gets them, which is said.
func TestPutBackAgainAndAgain(t *testing.T) {
	p := startWork(t)
	before := stateOf(t, p.PID)
	core := openWith(t, p, nil)
	evs := addTo(t, core, nil, "p:a f_six", "p:b f_push")
	had := right(t, p, "go 100")
	mem, site := patchAt(t, p.PID, evs[0].Place().Addr)
	for range 5 {
		putBack(t, core, mem, site)
	}
	n := right(t, p, "go 100")
	overwrite(t, mem, site)
	within(t, "the word", func() bool {
		err := core.Sync()
		return err != nil && strings.Contains(err.Error(), "event a, on f_six: taken out: somebody puts the program's own bytes back again and again")
	})
	m := right(t, p, "go 100")
	if have := bytesAt(t, p.PID, site.Addr, len(site.Orig)); !bytes.Equal(have, site.Orig) {
		t.Errorf("% x stands there, not % x", have, site.Orig)
	}
	if err := core.Sync(); err != nil {
		t.Error("told twice:", err)
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	counts(t, core, n["f_six"], evs[0])
	counts(t, core, m["f_push"], evs[1])
	if n["f_six"] <= had["f_six"] || m["f_six"] <= n["f_six"] {
		t.Errorf("nothing ran: %v, %v, %v", had, n, m)
	}
	before.same(t)
}

// Somebody takes everything out of the process while the tracer lives: this one finds the program's own bytes, and arms
// nothing on code that has gone.
func TestDetachedByForce(t *testing.T) {
	p := startWork(t)
	before := stateOf(t, p.PID)
	core := openWith(t, p, nil)
	addTo(t, core, nil, "p:a f_six", "p:b f_push")
	had := right(t, p, "go 100")
	q, err := process.OpenUnwaited(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	l, err := process.FindLeftover(q)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := l.Undo(); err != nil || u.Restored < 2 {
		t.Fatal(u, err)
	}
	within(t, "the word", func() bool { return errors.Is(core.Sync(), process.ErrDetached) })
	if n := right(t, p, "go 100"); n["f_six"] <= had["f_six"] {
		t.Errorf("nothing ran: %v, %v", had, n)
	}
	before.same(t)
	if err := core.Close(nil); !errors.Is(err, process.ErrDetached) {
		t.Errorf("at the end: %v", err)
	}
	before.same(t)
}

// An object goes whose function has a trampoline, and comes again at the same address: the stubs have been left, and it is
// probed like the first.
func TestTrampolineOfObjectThatGoes(t *testing.T) {
	lib := testprog.Build(t, "libdlone")
	p := program(t, "dl")
	at := right(t, p, "open "+lib)["addr"]
	before := stateOf(t, p.PID)
	core := openWith(t, p, nil)
	evs := addTo(t, core, &kprobes.AddOptions{Trampoline: true, Late: true}, "r:b "+lib+":lib_work")
	tr := evs[0]
	if how, err := tr.Returns(); how != kprobes.ReturnsTrampoline {
		t.Fatal(how, err)
	}
	sync := func() {
		t.Helper()
		core.Poll(func(*kprobes.Hit) {})
		if err := core.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	right(t, p, "call 5")
	for range 3 {
		right(t, p, "close")
		within(t, "the object is gone", func() bool {
			sync()
			return tr.Gone()
		})
		if n := right(t, p, "open "+lib); n["addr"] != at {
			t.Fatalf("the object is at 0x%x, was at 0x%x", n["addr"], at)
		}
		within(t, "the object is seen", func() bool {
			sync()
			return !tr.Gone()
		})
		right(t, p, "call 7")
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	counts(t, core, 5+3*7, evs...)
	right(t, p, "call 5")
	before.same(t)
}
