package guest_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
)

// underLoad are the definitions that are armed and disarmed while their functions run.
var underLoad = []string{
	"p:open do_sys_openat2", "p:inopen do_sys_openat2+5", "r:openret do_sys_openat2 $retval:s32",
	"p:read vfs_read", "r:readret vfs_read $retval:s64",
	"p:ppid __x64_sys_getppid", "p:inppid __x64_sys_getppid+11", "r:ppidret __x64_sys_getppid $retval:s32",
	"p:tcp tcp_v4_rcv", "r:tcpret tcp_v4_rcv $retval:s32",
}

// loops run programs on each CPU, over and over, until /tmp/stop is there; what they counted is
// then in /tmp/load.CPU, and /tmp/done.CPU is there.
const loops = `for c in 0 1; do
( while [ ! -e /tmp/stop ]; do
hit open 2000 $c; hit getppid 10000 $c; hit read 5000 $c; hit tcp 300 $c
done >/tmp/load.$c; echo done >/tmp/done.$c ) &
done; wait`

// load starts the loops; stop ends them and gives what the programs counted.
func load(t *testing.T, g *testguest.Guest) (stop func() []testguest.Counts) {
	t.Helper()
	g.Shell("rm -f /tmp/stop /tmp/done.* /tmp/load.*")
	end := g.Background("/bin/sh", "-c", loops)
	return func() (all []testguest.Counts) {
		t.Helper()
		defer end()
		g.Write("/tmp/stop", "", true)
		for cpu := range 2 {
			for tries := 0; ; tries++ {
				if _, err := g.Read(fmt.Sprintf("/tmp/done.%d", cpu)); err == nil {
					break
				} else if tries == 5000 {
					t.Fatalf("the programs on vCPU %d do not end", cpu)
				}
				time.Sleep(20 * time.Millisecond)
			}
			text, err := g.Read(fmt.Sprintf("/tmp/load.%d", cpu))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text) {
				var c testguest.Counts
				if err := json.Unmarshal([]byte(line), &c); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				all = append(all, c)
			}
		}
		return all
	}
}

// kinds are how many calls each of the loops' programs makes.
var kinds = map[string]uint64{"open": 2000, "ppid": 10000, "read": 5000, "tcp": 300}

// sums adds up the calls by kind, and checks that each program saw what it sees without
// probes.
func sums(t *testing.T, all []testguest.Counts) map[string]uint64 {
	t.Helper()
	sum := map[string]uint64{}
	for _, c := range all {
		for kind, calls := range kinds {
			if c.Calls != calls {
				continue
			}
			sum[kind] += calls
			good := c.Failed == 0
			switch kind {
			case "open":
				good = c.Failed == calls && c.Errno == int(syscall.ENOENT)
			case "ppid":
				good = good && c.Bytes%calls == 0
			case "read":
				good = good && c.Bytes == calls
			case "tcp":
				good = good && c.Bytes == 64*calls
			}
			if !good {
				t.Errorf("%s: %+v", kind, c)
			}
		}
	}
	for kind := range kinds {
		if sum[kind] == 0 {
			t.Errorf("no program made calls of the kind %s", kind)
		}
	}
	return sum
}

// TestPatchUnderLoad arms and disarms probes of functions that run on both vCPUs all the time.
func TestPatchUnderLoad(t *testing.T) {
	cycles := 15
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		cycles = 200
	}
	g := testguest.Boot(t, &testguest.Options{CPUs: 2, Threads: true})
	for _, low := range []bool{false, true} {
		t.Run(fmt.Sprint("low ", low), func(t *testing.T) { patchUnderLoad(t, g, cycles, low) })
	}
}

func patchUnderLoad(t *testing.T, g *testguest.Guest, cycles int, low bool) {
	p := attach(t, g, &guest.Options{Low: low})
	before, free := p.state(), p.free()
	stop := load(t, g)
	hits := map[string]uint64{}
	evs := p.add(&kprobes.AddOptions{Count: true, Tactic: "jump"}, underLoad...)
	done, end := 0, time.Now().Add(4*time.Minute)
	for last := false; !last; done++ {
		time.Sleep(5 * time.Millisecond)
		if err := p.core.SetEnabled(false); err != nil {
			t.Fatal(err)
		}
		// A guest that gets little of the host's time takes a while to run each of its programs.
		last = done+1 >= cycles && (p.allHit(evs, hits) || time.Now().After(end))
		if last || !low { // the ring below 1 MiB has numbers for 64 events
			p.took(evs, hits)
		}
		if !last && !low {
			evs = p.add(&kprobes.AddOptions{Count: true, Tactic: "jump"}, underLoad...)
		}
		if err := p.core.SetEnabled(true); err != nil {
			t.Fatal(err)
		}
	}
	calls := sums(t, stop())
	t.Logf("%d patches; hits %v of calls %v", 2*done, hits, calls)
	for name, n := range hits {
		if n == 0 {
			t.Errorf("%s: no hit", name)
		}
	}
	for _, name := range []string{"ppid", "inppid", "ppidret"} { // a shell asks for its parent's id as it starts
		if n, most := hits[name], calls["ppid"]+1000; n > most {
			t.Errorf("%s: %d hits of %d calls", name, n, most)
		}
	}
	if low {
		p.exact(40) // their records fit a ring of 32 KB for each CPU
	} else {
		p.exact(1000)
	}
	pauses := p.m.Pauses()
	slices.Sort(pauses)
	t.Logf("%d pauses: median %v, p99 %v, greatest %v", len(pauses), pauses[len(pauses)/2], pauses[len(pauses)*99/100], pauses[len(pauses)-1])
	ring := p.t.Ring().Layout.Size()
	if p.ends(before) && low && p.free()+ring+4096 < free {
		t.Errorf("%d bytes below 1 MiB were zero, now %d are; the ring has %d", free, p.free(), ring)
	}
	if err := p.m.Close(); err != nil {
		t.Error(err)
	}
	p.m = nil
	for _, l := range g.Trouble() {
		t.Errorf("the guest's console: %s", l)
	}
}

// free is how many bytes below 1 MiB are zero and of no use to the guest.
func (p *probed) free() (n uint64) {
	p.Helper()
	free, err := p.t.Kernel().Free()
	if err != nil {
		p.Fatal(err)
	}
	for _, r := range free {
		n += r.End - r.Start
	}
	return n
}

// allHit says whether each of the events was hit, now or earlier.
func (p *probed) allHit(evs []*kprobes.Event, earlier map[string]uint64) bool {
	return !slices.ContainsFunc(evs, func(e *kprobes.Event) bool { return earlier[e.Name]+p.core.Counts(e).Hits == 0 })
}

// took removes events and adds what they have counted to hits.
func (p *probed) took(evs []*kprobes.Event, hits map[string]uint64) {
	p.Helper()
	if err := p.core.Remove(evs); err != nil {
		p.Fatal(err)
	}
	for _, e := range evs {
		n := p.core.Counts(e)
		hits[e.Name] += n.Hits
		if n.Lost != 0 || n.Missed != 0 {
			p.Errorf("%s: %+v", e.Name, n)
		}
	}
}

// exact runs programs on both CPUs with the probes armed throughout.
func (p *probed) exact(calls int) {
	p.Helper()
	p.hits = nil
	evs := p.add(&kprobes.AddOptions{Tactic: "jump"}, underLoad...)
	text := p.g.Shell(fmt.Sprintf("for c in 0 1; do hit open %d $c & hit getppid %d $c & done; wait", calls, calls))
	p.poll()
	if err := p.core.Remove(evs); err != nil {
		p.Fatal(err)
	}
	p.poll()
	for line := range strings.Lines(text) {
		var c testguest.Counts
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			p.Fatalf("%q: %v", line, err)
		}
		names, want := []string{"ppid", "inppid", "ppidret"}, uint64(calls)
		if c.OK == 0 { // the shell has opened /dev/null for it
			names, want = []string{"open", "inopen", "openret"}, uint64(calls)+1
		}
		for _, name := range names {
			if got := p.recorded(name, c.PID); got != want {
				p.Errorf("%s: %d records of %d calls of process %d", name, got, want, c.PID)
			}
		}
	}
	for _, e := range evs {
		if n := p.core.Counts(e); n.Lost != 0 || n.Missed != 0 || n.Read != n.Hits {
			p.Errorf("%s: %+v", e.Name, n)
		}
	}
}

// recorded is the number of hits of an event in a process.
func (p *probed) recorded(name string, pid int) (n uint64) {
	for i := range p.hits {
		if h := &p.hits[i]; h.Event.Name == name && h.TID == pid {
			n++
		}
	}
	return n
}

// state is what must be in the guest's kernel again: the code of the functions, and the page
// table that gets our entries.
func (p *probed) state() map[string][]byte {
	p.Helper()
	out := map[string][]byte{}
	read := func(name string, n int) {
		at, ok := p.t.Kernel().Addr(name)
		b := make([]byte, n)
		if err := p.t.Read(at, b); !ok || err != nil {
			p.Fatalf("%s: %v, %v", name, ok, err)
		}
		out[name] = b
	}
	for _, s := range underLoad {
		d, err := event.Parse(s)
		if err != nil {
			p.Fatal(err)
		}
		read(d.Place.Symbol, 1024)
	}
	read("level2_fixmap_pgt", 4096)
	for i := range slices.Chunk(out["level2_fixmap_pgt"], 8) { // accessed and dirty: the CPU's
		binary.LittleEndian.PutUint64(i, binary.LittleEndian.Uint64(i)&^0x60)
	}
	return out
}

// ends takes everything out, and checks that the guest is as it was. It says whether nothing
// stays: a thread that sleeps may have an old address of a detour on its stack.
func (p *probed) ends(before map[string][]byte) bool {
	p.Helper()
	err := p.core.Close(p.take)
	if errors.Is(err, guest.ErrInDetour) {
		p.Log(err)
		delete(before, "level2_fixmap_pgt")
	} else if err != nil {
		p.Error(err)
	}
	now := p.state()
	for name, b := range before {
		if !bytes.Equal(b, now[name]) {
			p.Errorf("%s is not what it was", name)
		}
	}
	return err == nil
}
