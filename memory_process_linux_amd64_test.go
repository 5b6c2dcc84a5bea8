package kprobes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// memoryCgroup makes a memory cgroup, below our own or at the hierarchy's root. It is removed at
// the test's end, before which the programs in it must have ended.
func memoryCgroup(t *testing.T) *cgroup {
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var why error
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[1] == "memory" {
			for _, dir := range []string{filepath.Join("/sys/fs/cgroup/memory", f[2]), "/sys/fs/cgroup/memory"} {
				if c, err := makeCgroup(t, dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes"); err == nil {
					return c
				} else {
					why = errors.Join(why, err)
				}
			}
		}
	}
	c, err := makeCgroup(t, "/sys/fs/cgroup", "memory.max", "memory.current", "memory.peak")
	if err != nil {
		t.Skipf("no memory cgroup can be made here: %v", errors.Join(why, err))
	}
	return c
}

type cgroup struct {
	t                      *testing.T
	dir, limit, used, peak string
}

func makeCgroup(t *testing.T, parent, limit, used, peak string) (*cgroup, error) {
	dir, err := os.MkdirTemp(parent, "kprobes-test-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("cgroup: %v", err)
		}
	})
	c := &cgroup{t, dir, limit, used, peak}
	_, err = os.Stat(filepath.Join(dir, limit))
	return c, err
}

func (c *cgroup) write(name string, v int) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(strconv.Itoa(v)), 0); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cgroup) read(name string) int {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// start runs miser in the cgroup: all its memory is charged there.
func (c *cgroup) start(kb int) *testprog.Proc {
	c.t.Helper()
	prog := testprog.Start(c.t, testprog.Build(c.t, "miser"))
	c.write("cgroup.procs", prog.PID)
	c.t.Cleanup(func() { prog.Kill() }) // before the cgroup is removed
	prog.Counts(fmt.Sprint("grow ", kb))
	return prog
}

// probe puts probes on a program, has them hit, and takes them out. It says what kept it from that.
func probe(t *testing.T, prog *testprog.Proc, o *process.TargetOptions, defs ...string) error {
	t.Helper()
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	evs, err := c.Add(parse(t, defs...), nil)
	if err == nil {
		before := prog.Counts("count")["miser_step"]
		const runs = 20000
		if n := prog.Counts(fmt.Sprint("count ", runs))["miser_step"] - before; n != runs {
			t.Errorf("miser_step ran %d times, not %d", n, runs)
		}
		defer func() {
			if got := c.Counts(evs[0]); got.Hits != runs+1 {
				t.Errorf("hits = %d, the program ran %d times", got.Hits, runs+1)
			}
		}()
	}
	if cerr := c.Close(nil); cerr != nil {
		t.Errorf("close: %v", cerr)
	}
	if !prog.Alive() {
		t.Fatal("the program has died")
	}
	if maps, merr := p.Maps(); merr != nil || strings.Contains(fmt.Sprint(maps), "kprobes:") {
		t.Errorf("maps after the end (%v) still have something of ours: %v", merr, maps)
	}
	return err
}

// TestNearTheCgroupsLimit attaches to a program whose memory cgroup leaves it less and less. Never
// may the limit be reached, as the kernel tells; what there is no room for is refused, with the limit's
// name. Where there is room the kernel must not have charged more than was reckoned with.
func TestNearTheCgroupsLimit(t *testing.T) {
	const held = 8 << 10
	refused, worked := 0, 0
	for _, free := range []int{16, 64, 128, 256, 384, 512, 768, 1 << 10, 2 << 10, 64 << 10} {
		cg := memoryCgroup(t)
		prog := cg.start(held)
		cg.write(cg.limit, cg.read(cg.used)+free<<10)
		err := probe(t, prog, nil, "p miser_step a=%di", "p libc.so.6:malloc", "p libc.so.6:read")
		var short *headroom.Error
		switch {
		case err == nil:
			worked++
		case errors.As(err, &short) && strings.Contains(err.Error(), cg.dir) && errors.Is(err, unix.ENOMEM):
			refused++
		default:
			t.Errorf("%d KiB free: %v", free, err)
		}
		if n := failures(cg); n != 0 {
			t.Errorf("%d KiB free: the limit was reached %d times", free, n)
		}
		prog.Kill()
	}
	if refused == 0 || worked == 0 {
		t.Errorf("refused %d times, worked %d times: both are to be seen", refused, worked)
	}
}

// failures is how often a cgroup's limit was reached.
func failures(c *cgroup) int {
	if c.limit == "memory.limit_in_bytes" {
		return c.read("memory.failcnt")
	}
	b, err := os.ReadFile(filepath.Join(c.dir, "memory.events"))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "max "); ok {
			v, _ := strconv.Atoi(strings.TrimSpace(n))
			return v
		}
	}
	return 0
}

// TestManyProbesNearTheCgroupsLimit arms all of the C library where some of it has room, and where
// there is no room for all of it.
func TestManyProbesNearTheCgroupsLimit(t *testing.T) {
	for _, free := range []int{1 << 10, 3 << 10, 64 << 10} {
		cg := memoryCgroup(t)
		prog := cg.start(1 << 10)
		cg.write(cg.limit, cg.read(cg.used)+free<<10)
		p, err := process.OpenUnwaited(prog.PID)
		if err != nil {
			t.Fatal(err)
		}
		tg, err := process.Attach(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := kprobes.Open(tg, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Add(parse(t, "p libc.so.6:*"), &kprobes.AddOptions{Count: true, Skip: func(string, error) {}})
		if short := (&headroom.Error{}); free < 4<<10 && !errors.As(err, &short) || free > 4<<10 && err != nil {
			t.Errorf("%d KiB free: %v", free, err)
		}
		prog.Counts("count 10")
		if err := errors.Join(c.Close(nil), p.Close()); err != nil {
			t.Error(err)
		}
		if n := failures(cg); n != 0 {
			t.Errorf("%d KiB free: the limit was reached %d times", free, n)
		}
		prog.Kill()
	}
}

// TestPoolNearTheCgroupsLimit puts a return probe on a program that has no room for the usual pool.
func TestPoolNearTheCgroupsLimit(t *testing.T) {
	cg := memoryCgroup(t)
	prog := cg.start(1 << 10)
	cg.write(cg.limit, cg.read(cg.used)+4<<20)
	if err := probe(t, prog, nil, "r miser_step r=$retval"); err != nil {
		t.Error(err)
	}
	if n := failures(cg); n != 0 {
		t.Errorf("the limit was reached %d times", n)
	}
	prog.Kill()
}

// TestShortAddressSpace attaches where the address space, or the writable part of it, is limited: a
// smaller ring, or a refusal that leaves the program what it had.
func TestShortAddressSpace(t *testing.T) {
	for _, c := range []struct {
		what     string
		resource int
		field    string
		free     uint64 // MiB
		works    bool
	}{
		{"RLIMIT_AS", unix.RLIMIT_AS, "VmSize", 1, false},
		{"RLIMIT_AS", unix.RLIMIT_AS, "VmSize", 16, true},
		{"RLIMIT_AS", unix.RLIMIT_AS, "VmSize", 1 << 12, true},
		{"RLIMIT_DATA", unix.RLIMIT_DATA, "VmData", 0, false},
		{"RLIMIT_DATA", unix.RLIMIT_DATA, "VmData", 2, true},
	} {
		prog := testprog.Start(t, testprog.Build(t, "miser"))
		prog.Counts("grow 1024")
		limit := statusKB(t, prog.PID, c.field)<<10 + c.free<<20
		if err := unix.Prlimit(prog.PID, c.resource, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
			t.Fatal(err)
		}
		err := probe(t, prog, nil, "p miser_step a=%di")
		if c.works && err != nil || !c.works && (!errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), c.what)) {
			t.Errorf("%s leaves %d MiB: %v", c.what, c.free, err)
		}
		if !c.works {
			if err != nil && !strings.Contains(err.Error(), "prlimit") {
				t.Errorf("the error does not tell what to do: %v", err)
			}
		}
		prog.Kill()
	}
}

// TestLockedMemory attaches to programs that lock all memory they will map: no page of the ring or
// of a table may become theirs by that, and a limit of locked memory is heeded.
func TestLockedMemory(t *testing.T) {
	for _, limited := range []bool{false, true} {
		prog := testprog.Start(t, testprog.Build(t, "miser"))
		prog.Counts("lock")
		before := statusKB(t, prog.PID, "VmLck")
		if limited {
			var limit unix.Rlimit
			if err := unix.Prlimit(prog.PID, unix.RLIMIT_MEMLOCK, nil, &limit); err != nil {
				t.Fatal(err)
			}
			limit.Cur = min(limit.Max, before<<10+1<<20)
			if err := unix.Prlimit(prog.PID, unix.RLIMIT_MEMLOCK, &limit, nil); err != nil {
				t.Fatal(err)
			}
			prog.Counts("drop")
		}
		err := probe(t, prog, nil, "p miser_step a=%di")
		if !limited && err != nil || limited && (!errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK")) {
			t.Errorf("limited: %v: %v", limited, err)
		}
		if after := statusKB(t, prog.PID, "VmLck"); after != before {
			t.Errorf("locked memory: %d KiB before, %d after", before, after)
		}
		prog.Kill()
	}
}

func statusKB(t *testing.T, pid int, field string) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("status has no %s", field)
	return 0
}

// parse reads definitions.
func parse(t *testing.T, texts ...string) (defs []*event.Def) {
	t.Helper()
	for _, text := range texts {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	return defs
}

// A table whose pages the process would pay for is refused where its cgroup has no room for them: the kernel would kill somebody there.
func TestTableNearTheCgroupsLimit(t *testing.T) {
	c := memoryCgroup(t)
	prog := c.start(8 << 10)
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tg.Prepare(); err != nil {
		t.Fatal(err)
	}
	for _, room := range []int{3 << 20, 64 << 20} {
		c.write(c.limit, c.read(c.used)+room)
		_, err := tg.NewTable(4 << 20)
		var full *headroom.Error
		if errors.As(err, &full) != (room < 4<<20) {
			t.Errorf("a table of 4 MiB, and %d bytes of room: %v", room, err)
		}
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
}
