package e2e

import (
	"fmt"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/testprog"
)

// A thread that comes to block SIGTRAP after the attach hits a place that has no room for a jump: no
// breakpoint of the engine's stands there, though nothing spoke against one when it was armed. The kernel
// holds the probe; what it can not hold is refused, and the words tell how to ask for a breakpoint.
func TestMaskedLater(t *testing.T) {
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "tight")), "late")
	fails(t, command(t, "trace", "-p", pid(p), "--duration", "1ms", "r:x tight"), 1, "SIGTRAP", "tactic boost asks for one")
	s := trace(t, p.PID, tightEntry, tightLoop)
	n := right(t, p, "go 300")
	r := s.end()
	r.counted(t, "entry", n["tight"], "uprobe")
	r.counted(t, "loop", n["loops"], "jump")

	core := open(t, p)
	k := &kprobes.Kprobe{SymbolName: "tight", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	if err := core.RegisterKprobe(k); err == nil || !strings.Contains(err.Error(), "tactic boost asks for one") {
		t.Errorf("a handler where only a breakpoint could call it: %v", err)
	}
	right(t, p, "go 10")
	if err := engine.Of(core).ForceTactic("boost"); err != nil {
		t.Fatal(err)
	}
	if err := core.RegisterKprobe(k); err != nil {
		t.Errorf("a breakpoint is asked for by name: %v", err)
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	right(t, p, "go 10")
}

// The C library blocks all signals where a thread begins and ends, and in the child of posix_spawn,
// which shares the memory and has no handler of ours. Probes at all instructions there, and the
// threads and processes live.
func TestThreadsBegin(t *testing.T) {
	p := testprog.Start(t, "/usr/bin/python3", "testdata/threads.py")
	core := open(t, p)
	right(t, p, "go 4")
	counts := map[string]*kprobes.Event{}
	tactics, refused := map[string]int{}, 0
	for _, fn := range []string{"start_thread", "__spawni_child"} {
		m, f, err := core.Target().Space().Lookup("libc.so.6", fn)
		if err != nil {
			t.Fatalf("%v: apt-get install libc6-dbg", err)
		}
		for _, a := range (&inside{path: m.Image.Path(), starts: true, nops: true}).instructions(t) {
			if off := a.addr - f.Addr; off < f.Size {
				evs, err := core.Add(parsed(t, fmt.Sprintf("p:%s_%d libc.so.6:%s+%d", eventName(f.Addr), off, fn, off)), &kprobes.AddOptions{Count: true})
				if err != nil {
					refused++
					continue
				}
				tactics[string(tacticOf(evs[0]))]++
				if off == 0 {
					counts[fn] = evs[0]
				}
			}
		}
	}
	t.Logf("%v, refused %d", tactics, refused)
	if tactics["jump"] < 400 || tactics["boost"]+tactics["step"] > 0 || refused > 20 {
		t.Errorf("places by tactic: %v, refused %d; want most by jump, and no breakpoint of ours", tactics, refused)
	}
	n := right(t, p, "go 60")
	for fn, want := range map[string]uint64{"start_thread": n["threads"], "__spawni_child": n["spawned"]} {
		if got := core.Counts(counts[fn]).Hits; got != want {
			t.Errorf("%s has %d hits, the program counts %d", fn, got, want)
		}
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	right(t, p, "go 4")
}
