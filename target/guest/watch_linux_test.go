package guest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testguest"
)

// TestWatch compares what watchpoints tell with how often a shell of the guest writes a variable of the kernel, and reads it.
func TestWatch(t *testing.T) {
	const writes = 12
	p := attach(t, testguest.Shared(t), nil)
	evs := p.add(nil, "w:set w@panic_on_oops at=$addr v=%ax", "w:all rw@panic_on_warn:4", "w:run x@__x64_sys_getppid regs=%di")
	count := p.add(&kprobes.AddOptions{Count: true}, "w:count w@panic_on_oops")
	more := p.add(nil, "p:jump do_proc_dointvec_conv") // a patch in the function that writes
	if form, _ := evs[0].Form(); form != "watch" {
		t.Errorf("tactic %s", form)
	}
	_, err := p.tryAdd(nil, "w @jiffies_64")
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "set, all, run, count") {
		t.Errorf("the fifth: %v", err)
	}
	p.g.Shell(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo 1 > /proc/sys/kernel/panic_on_oops; i=$((i+1)); done; echo 0 > /proc/sys/kernel/panic_on_oops", writes-1))
	p.g.Shell("cat /proc/sys/kernel/panic_on_warn; echo 0 > /proc/sys/kernel/panic_on_warn")
	c := p.g.Hit("getppid", 20, 1)
	p.poll()
	p.counts(evs[0], writes)
	p.counts(count[0], writes)
	if n := strings.Count(p.normalLines(c.PID), " run: "); n != 20 { // shells ask for their parent too
		t.Errorf("%d runs of 20", n)
	}
	if n := p.core.Counts(evs[1]).Hits; n < 2 {
		t.Errorf("panic_on_warn was read and written: %d accesses", n)
	}
	for _, l := range p.lines() {
		if strings.Contains(l, "unknown") {
			t.Errorf("who accessed? %s", l)
		}
	}
	if err := p.core.Remove(append(evs, append(count, more...)...)); err != nil {
		t.Error(err)
	}
	p.add(nil, "w:next w@panic_on_oops")
}

// TestWatchRefused has what QEMU or the kernel can not have, with what to do instead.
func TestWatchRefused(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	p.add(nil, "w:one w@panic_on_oops")
	for def, want := range map[string]struct {
		errno error
		text  string
	}{
		"w:r r@panic_on_oops":       {unix.EINVAL, "use rw"},
		"w:two rw@panic_on_oops":    {unix.EBUSY, "take that one out first"},
		"w:user w@0x400000":         {unix.EINVAL, "no address of the guest's kernel"},
		"w:odd w@panic_on_oops+1:4": {unix.EINVAL, "watch fewer bytes"},
		"w:none w@no_such_variable": {unix.ENOENT, "no_such_variable"},
	} {
		if _, err := p.tryAdd(nil, def); !errors.Is(err, want.errno) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v, want %v and %q", def, err, want.errno, want.text)
		}
	}
}

// TestWatcherKilled kills a tracer that watches, while a shell of the guest writes what it watches: the guest goes on, and QEMU
// watches for the next tracer alone.
func TestWatcherKilled(t *testing.T) {
	const write = "echo 0 > /proc/sys/kernel/panic_on_oops; echo 0 > /proc/sys/kernel/panic_on_warn; "
	g := testguest.Shared(t)
	for range 3 {
		cmd := startVictim(t, g, envWatch+"=1")
		end := g.Background("/bin/sh", "-c", "while true; do "+write+"done")
		time.Sleep(time.Duration(rand.IntN(100_000)) * time.Microsecond)
		kill(t, cmd)
		for cpu := range 2 {
			if c := g.Hit("getppid", 100, cpu); c.OK != 100 {
				t.Fatalf("the guest after the tracer's death: %+v", c)
			}
		}
		end()
		p := attach(t, g, nil)
		evs := p.add(nil, "w:set w@panic_on_oops:4", "w:all w@panic_on_warn:4")
		g.Shell(strings.Repeat(write, 5))
		p.poll()
		p.counts(evs[0], 5)
		p.counts(evs[1], 5)
		p.close()
	}
}
