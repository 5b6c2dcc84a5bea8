package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// A kernel uprobe comes to stand in the jump of a probe on shared text, at its first byte or within, and nobody
// runs there before the tracer looks: the probe is taken out around the uprobe's breakpoint, the program computes
// the same, the uprobe counts every call, and the other probes go on.
func TestUprobeOverSharedText(t *testing.T) {
	for _, plus := range []uint64{0, 3} {
		t.Run(fmt.Sprintf("f_six+%d", plus), func(t *testing.T) {
			p := startWork(t)
			s := trace(t, p.PID, "--text", "shared", "p:a f_six a=$arg1", "r:b f_six", "p:c f_push")
			had := right(t, p, "go 100")
			u := uprobeAt(t, p, "f_six", plus)
			within(t, "the word", func() bool { return strings.Contains(s.errs.String(), "event b, on f_six: taken out: a breakpoint") })
			if !strings.Contains(s.errs.String(), "event a, on f_six: taken out: a breakpoint that is not ours (a kernel uprobe, a debugger) stands in its patch") {
				t.Errorf("not told: %s", s.errs.String())
			}
			n := right(t, p, "go 1000")
			if hits, err := u.Count(); err != nil || hits != n["f_six"]-had["f_six"] {
				t.Errorf("the kernel's uprobe counts %d, %v, the program %d", hits, err, n["f_six"]-had["f_six"])
			}
			if err := u.Close(); err != nil {
				t.Error(err)
			}
			m := right(t, p, "go 100")
			r := s.end()
			r.counted(t, "a", had["f_six"], "none")
			r.counted(t, "b", had["f_six"], "none")
			r.counted(t, "c", m["f_push"], "jump")
			r.whole(t)
			if n := strings.Count(r.stderr, "taken out"); n != 2 {
				t.Errorf("told %d times: %s", n, r.stderr)
			}
		})
	}
}

// patchAt gives the patch that stands at an address, and the process's memory.
func patchAt(t *testing.T, pid int, addr uint64) (*os.File, process.Patched) {
	t.Helper()
	l, err := leftover(pid)
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	i := slices.IndexFunc(l.Sites, func(s process.Patched) bool { return s.Addr == addr || addr == 0 && len(s.Points) > 0 })
	if i < 0 {
		t.Fatalf("nothing stands at 0x%x: %+v", addr, l.Sites)
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	return mem, l.Sites[i]
}

// Another tool puts bytes of its own over a patch: they are left alone, which is said, and again at the end.
func TestPatchedOverSharedText(t *testing.T) {
	p := startWork(t)
	s := trace(t, p.PID, "--text", "shared", "p:a f_six a=$arg1")
	had := right(t, p, "go 100")
	mem, site := patchAt(t, p.PID, 0)
	theirs := bytes.Clone(site.Patch)
	theirs[2] ^= 0x5a
	if _, err := mem.WriteAt(theirs, int64(site.Addr)); err != nil {
		t.Fatal(err)
	}
	within(t, "the word", func() bool {
		return strings.Contains(s.errs.String(), "event a, on f_six: taken out: somebody else has patched it")
	})
	have := make([]byte, len(theirs))
	if _, err := mem.ReadAt(have, int64(site.Addr)); err != nil || !bytes.Equal(have, theirs) {
		t.Errorf("% x, %v: theirs are % x", have, err, theirs)
	}
	if _, err := mem.WriteAt(site.Orig, int64(site.Addr)); err != nil { // they have gone
		t.Fatal(err)
	}
	right(t, p, "go 1000")
	s.interrupt()
	r := s.wait()
	if r.code == 0 || !strings.Contains(r.stderr, "left alone") {
		t.Errorf("at the end: %v", r.outcome)
	}
	r.counted(t, "a", had["f_six"], "none")
}

// The engine's own probe on the loader is written into: it is taken out too, which is said, return addresses are
// not replaced any more, and objects that come are seen by the next look.
func TestOwnProbeWrittenInto(t *testing.T) {
	lib := testprog.Build(t, "libdlone")
	p := program(t, "dl")
	before := stateOf(t, p.PID)
	core := openWith(t, p, &process.TargetOptions{Text: process.TextShared})
	d, err := event.Parse("p:a " + lib + ":lib_work")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	loader, _, _ := core.Target().Loader()
	mem, site := patchAt(t, p.PID, loader.Addr)
	if _, err := mem.WriteAt([]byte{0xcc}, int64(site.Addr)+1); err != nil {
		t.Fatal(err)
	}
	within(t, "the word", func() bool {
		err := core.Sync()
		return err != nil && strings.Contains(err.Error(), "the engine's own probe on "+loader.Func.Name+", for objects that are loaded") && strings.Contains(err.Error(), "taken out")
	})
	want := bytes.Clone(site.Orig)
	want[1] = 0xcc
	have := make([]byte, len(want))
	if _, err := mem.ReadAt(have, int64(site.Addr)); err != nil || !bytes.Equal(have, want) {
		t.Errorf("% x, %v, want % x", have, err, want)
	}
	if _, err := mem.WriteAt(site.Orig, int64(site.Addr)); err != nil {
		t.Fatal(err)
	}
	if at := evs[0].Place(); at != (kprobes.Place{}) {
		t.Errorf("the object has not come, and the event stands at %+v", at)
	}
	right(t, p, "open "+lib)
	within(t, "the object", func() bool { return core.Sync() == nil && !evs[0].Gone() })
	if at := evs[0].Place(); at.Addr == 0 || at.Symbol == "" || at.Module != filepath.Base(lib) {
		t.Errorf("the object has come, and the event stands at %+v", at)
	}
	right(t, p, "call 5")
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(evs[0]); c.Hits != 5 {
		t.Errorf("%+v", c)
	}
	before.same(t)
}
