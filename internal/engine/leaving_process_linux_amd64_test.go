package engine

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/goabi"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// Panics leave calls of functions whose probes come and go while the probe that tells of such calls stands. Each call is told of while its function has a probe
// that is armed, with what its entry has kept, and no code is left that refers to the instances of one that is gone.
func TestLeaving(t *testing.T) {
	prog := testprog.Start(t, testprog.BuildLive(t, "gonests"))
	c := attached(t, prog.PID)
	add := func(ds ...*event.Def) []*Event {
		evs, err := c.Add(ds, nil)
		if err != nil {
			t.Fatal(err)
		}
		return evs
	}
	at := parsed(t, "p:at runtime.recovery id=gp.goid from=gp.sched.sp to=gp._panic.sp high=gp.stack.hi")
	climb, guard, again := parsed(t, "r:climb main.Climb id in took=$duration"), parsed(t, "r:guard main.Guard id"), parsed(t, "r:again main.Climb id in took=$duration")
	c.Leave(&Leaving{At: at, Calls: map[*event.Def]bool{climb: true, guard: true, again: true}})
	got := map[string]uint64{}
	ids := map[uint64]bool{}
	poll := func() {
		c.Poll(func(h *hit.Hit) {
			vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
			switch {
			case err != nil:
				t.Error(err)
			case !h.Left:
				got[h.Event.Name]++
			case h.Event.Name == "guard" || ids[vs[0].Num] || vs[1].Num == 0 || vs[1].Num >= vs[0].Num || vs[2].Num == 0 || h.GoID == 0 || h.Caller == 0:
				t.Errorf("%s: %+v, %+v", h.Event.Name, h, vs)
			default:
				ids[vs[0].Num] = true
				got[h.Event.Name+" left"]++
			}
		})
	}
	// run has the program make calls, and gives how many a panic has left, and how many have recovered from one.
	run := func() (left, recovered uint64) {
		clear(got)
		was := prog.Counts("count")
		for range 5 {
			prog.Counts("go 3")
			poll()
			time.Sleep(records.SettleTime)
			poll()
		}
		n := prog.Counts("count")
		return n["climb"] - was["climb"], n["guard"] - was["guard"]
	}
	first := add(climb, guard, at)
	for _, step := range []struct {
		what   string
		change func()
		name   string // of the records of calls that were left; "": there are none
		guards bool   // calls of Guard have records
	}{
		{"all stand", func() {}, "climb", true},
		{"one is gone", func() {
			if err := c.Remove(first[:1]); err != nil {
				t.Fatal(err)
			}
		}, "", true},
		{"it has come again", func() { add(again) }, "again", true},
		{"all are disabled", func() {
			if err := c.SetEnabled(false); err != nil {
				t.Fatal(err)
			}
		}, "", false},
		{"all are enabled", func() {
			if err := c.SetEnabled(true); err != nil {
				t.Fatal(err)
			}
		}, "again", true},
		{"the one that tells is gone", func() {
			if err := c.Remove(first[2:]); err != nil {
				t.Fatal(err)
			}
		}, "", true},
	} {
		step.change()
		left, guards := run()
		want := map[string]uint64{}
		if step.name != "" {
			want[step.name+" left"] = left
		}
		if step.guards {
			want["guard"] = guards
		}
		if left == 0 || guards == 0 || len(got) != len(want) {
			t.Errorf("%s: %v, want %v", step.what, got, want)
		}
		for name, n := range want {
			if got[name] != n {
				t.Errorf("%s: %d records %q, want %d", step.what, got[name], name, n)
			}
		}
	}
	if err := c.Close(nil); err != nil {
		t.Error(err)
	}
	prog.Counts("go 3")
}

// attached opens a process, until the test ends.
func attached(t *testing.T, pid int) *Core {
	t.Helper()
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// parsed reads a definition.
func parsed(t *testing.T, text string) *event.Def {
	t.Helper()
	d, err := event.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// noTables is a target that has no room for a table.
type noTables struct{ target.Unwinder }

func (noTables) NewTable(int) (uint64, error) { return 0, unix.ENOMEM }

// Where all traces are kept goroutines have records only if they are created in a call: Guard creates none. Where there is no room for the table all of
// them have.
func TestSampleAll(t *testing.T) {
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprintf("room=%t", room), func(t *testing.T) {
			prog := testprog.Start(t, testprog.BuildLive(t, "gonests"))
			c := attached(t, prog.PID)
			if !room {
				c.can.Unwinder = noTables{c.can.Unwinder}
			}
			id := goabi.Layouts(runtime.Version())[0].GoID
			in, out, ended := parsed(t, "p:in main.Guard"), parsed(t, "r:out main.Guard"), parsed(t, "p:ended runtime.goexit1")
			created := parsed(t, fmt.Sprintf("r:created runtime.newproc1 by=+%d($arg2):u64 new=+%d($retval):u64", id, id))
			s := &Sampling{Every: 1, Roles: map[*event.Def]arch.SampleRole{in: arch.SampleEnter, out: arch.SampleLeave, ended: arch.SampleEnded, created: arch.SampleCreated}}
			c.Sample(s)
			evs, err := c.Add([]*event.Def{in, out, ended, created}, nil)
			if err != nil || (c.Samples(s) == nil) != room {
				t.Fatalf("%v, %v", err, c.Samples(s))
			}
			was := prog.Counts("count")
			n := prog.Counts("go 3")
			for n["guard"] == was["guard"] { // it is at random what the calls are
				n = prog.Counts("go 3")
			}
			got := map[string]uint64{}
			if err := c.Close(func(h *hit.Hit) { got[h.Event.Name]++ }); err != nil {
				t.Error(err)
			}
			made := c.Counts(evs[3]).Hits
			want := map[string]uint64{"in": n["guard"] - was["guard"], "out": n["guard"] - was["guard"]}
			if !room {
				want["created"], want["ended"] = made, c.Counts(evs[2]).Hits
			}
			if !maps.Equal(got, want) || made == 0 || c.Unsampled(s) != 0 {
				t.Errorf("records %v, want %v; %d goroutines were created", got, want, made)
			}
		})
	}
}
