package e2e

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// foreign are the builds of the program fsbase: one that goes through the C library, and one that has the
// instructions itself.
var foreign = map[string][]string{"library": nil, "inline": {"-DINLINE", "-mfsgsbase"}}

// kinds of events on hit: what they do differs.
var kinds = map[string]string{"counter": "p:a hit", "record": "p:a hit v=%di", "memory": "p:a hit v=+0(%sp):u64", "string": `p:a hit s=+0(%sp):string`, "return": "r:a hit v=$retval"}

// arms adds one event, a counter or a record.
func arms(t *testing.T, core *kprobes.Core, kind string) *kprobes.Event {
	t.Helper()
	return armsText(t, core, kinds[kind], kind == "counter")
}

// armsText adds one event.
func armsText(t *testing.T, core *kprobes.Core, probe string, count bool, ask ...func(*event.Def)) *kprobes.Event {
	t.Helper()
	d, err := event.Parse(probe)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ask {
		f(d)
	}
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Count: count, Late: true})
	if err != nil {
		t.Fatal(err)
	}
	return evs[0]
}

// exact compares what the event has counted, and what was read of it, with the program's own count.
func exact(t *testing.T, core *kprobes.Core, e *kprobes.Event, hits uint64) {
	t.Helper()
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(e); c.Hits != hits || c.Missed != 0 {
		t.Errorf("%+v, the program counts %d", c, hits)
	}
}

// TestForeignBase: a thread whose FS base is 0, or leads to other memory, or to a copy of its block, is
// counted like others, lives, and nothing of that memory is written.
func TestForeignBase(t *testing.T) {
	for build, flags := range foreign {
		for kind := range kinds {
			t.Run(build+"_"+kind, func(t *testing.T) {
				p := testprog.Start(t, testprog.Build(t, "fsbase", flags...))
				core := open(t, p)
				e := arms(t, core, kind)
				var n map[string]uint64
				for _, c := range []string{"zero 5", "other 5 0", "other 5 0x5a", "copy 5", "create 5", "zero 5"} {
					if n = p.Counts(c); n["spoilt"] != 0 {
						t.Errorf("%s: %d bytes changed", c, n["spoilt"])
					}
				}
				exact(t, core, e, n["hit"])
			})
		}
	}
}

// TestSharedArea: threads that share an area for restartable sequences with the one that made them, and the child
// of vfork, count exactly, beside others that own theirs.
func TestSharedArea(t *testing.T) {
	for build, flags := range foreign {
		for _, kind := range []string{"counter", "record", "string"} {
			for _, command := range []string{"share", "child"} {
				t.Run(fmt.Sprint(build, "_", kind, "_", command), func(t *testing.T) {
					p := testprog.Start(t, testprog.Build(t, "fsbase", flags...))
					core := open(t, p)
					e := arms(t, core, kind)
					calls := 20_000_000
					if kind != "counter" {
						calls = 20_000
					}
					done := make(chan struct{})
					go func() {
						defer close(done)
						for range 2 {
							p.Counts(fmt.Sprint(command, " ", calls))
						}
					}()
					drain(core, done)
					exact(t, core, e, p.Counts("create 3")["hit"])
				})
			}
		}
	}
}

// drain reads records until done is closed.
func drain(core *kprobes.Core, done <-chan struct{}) {
	for {
		core.Poll(func(*tracing.Hit) {})
		select {
		case <-done:
			return
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// sharedWord reads the word that says whether threads may share blocks.
func sharedWord(t *testing.T, core *kprobes.Core) uint32 {
	t.Helper()
	w := core.Target().CodegenEnv()
	if w.Shared == 0 || !w.HasRseq {
		t.Fatalf("records are not written as by threads with areas of their own (%+v)", w)
	}
	var b [4]byte
	if err := core.Target().Read(w.Shared, b[:]); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(b[:])
}

// TestOwnThreadsStayFast: threads of pthread_create leave the process on the way that takes no lock; the first of
// each call that may make threads share a block ends that.
func TestOwnThreadsStayFast(t *testing.T) {
	for _, command := range []string{"zero 1", "share 1", "spawn 1", "child 1"} {
		t.Run(command, func(t *testing.T) {
			p := program(t, "fsbase")
			core := open(t, p)
			e := arms(t, core, "record")
			p.Counts("create 20")
			if sharedWord(t, core) != 0 {
				t.Error("threads with blocks of their own are taken for others")
			}
			p.Counts(command)
			if sharedWord(t, core) == 0 {
				t.Errorf("%s went unnoticed", command)
			}
			exact(t, core, e, p.Counts("create 1")["hit"])
		})
	}
}

// TestBaseUnnoticed: where an FS base was moved and nobody saw it, by code that did not exist at the attach, what it
// leads to is looked at before anything is written there.
func TestBaseUnnoticed(t *testing.T) {
	p := program(t, "fsbase")
	core := open(t, p)
	e := arms(t, core, "record")
	sharedWord(t, core)
	target := core.Target().(*process.Target)
	if target.CodegenEnv().Features&amd64.FeatureFSGSBase == 0 {
		t.Skip("this processor, or its kernel, does not let programs read the FS base")
	}
	var n map[string]uint64
	for _, c := range []string{"other 500000 0", "other 500000 0x5a", "zero 500000"} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			n = p.Counts(c)
		}()
		for wait := true; wait; {
			_ = target.Proc().WriteMem(target.CodegenEnv().Shared, make([]byte, 4)) // an error: the program set it just then
			select {
			case <-done:
				wait = false
			default:
				core.Poll(func(*tracing.Hit) {})
			}
		}
		if n["spoilt"] != 0 {
			t.Errorf("%s: %d bytes changed", c, n["spoilt"])
		}
	}
	exact(t, core, e, n["hit"])
}

// TestNameAtHit: $comm is the name that the thread had at the hit, whoever reads it when.
func TestNameAtHit(t *testing.T) {
	want := []string{"fsbase", "one", "a name of 15 by", "two"}
	for _, tactic := range []arch.Tactic{arch.TacticJump, arch.TacticUprobe} {
		t.Run(string(tactic), func(t *testing.T) {
			p := aside(t, "fsbase")
			core := open(t, p)
			add(t, core, tactic, "p:a hit v=%di c=$comm w=%di")
			p.Counts("create 1")
			for _, name := range want[1:] {
				p.Counts("name " + name)
			}
			var have []string
			if err := core.Close(func(h *tracing.Hit) {
				vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "read later")
				if err != nil || vs[0].Num != 0 || vs[2].Num != 0 {
					t.Errorf("%v, %v", vs, err)
				}
				have = append(have, string(vs[1].Str))
			}); err != nil {
				t.Error(err)
			}
			if !slices.Equal(have, want) {
				t.Errorf("%q, want %q", have, want)
			}
		})
	}
}
