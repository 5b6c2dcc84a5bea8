package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crowding is what one of many shells does to a mount until a time: with an event of its own, and with what no file takes.
const crowding = `
while [ $(date +%s) -lt $END ]; do
	echo "p:g$I/e do_sys_open a=%di:s32" >> kprobe_events
	echo 1 > events/g$I/e/enable
	echo "p:g$I/( do_sys_open" >> kprobe_events
	echo "a > -200 && $I" > events/g$I/e/filter
	echo "a > -200" > events/g$I/e/filter
	echo "hist:keys=a:vals=" > events/g$I/e/trigger
	echo "hist:keys=a" > events/g$I/e/trigger
	head -c 300 /dev/urandom | tr -d '\n' > events/g$I/e/filter
	head -c 300 /dev/urandom | tr -d '\n' >> kprobe_events
	head -c 300 /dev/urandom | tr -d '\n' > events/g$I/e/trigger
	head -c 300 /dev/urandom > trace_marker
	head -c 9 /dev/urandom > buffer_size_kb
	echo "nosuch:nosuch" >> set_event
	mkdir instances/i$I instances/i$I
	echo 1 > instances/i$I/events/g$I/e/enable
	cat instances/i$I/trace events/g$I/e/hist kprobe_profile error_log > /dev/null
	rmdir instances/i$I instances/nosuch
	echo "!hist:keys=a" > events/g$I/e/trigger
	echo 0 > events/g$I/e/enable
	echo "-:g$I/e" >> kprobe_events
	[ $((I % 8)) = 0 ] && find . -type f ! -name '*pipe*' -exec cat {} + > /dev/null
done 2>/dev/null
true`

// TestMountCrowd has 16 shells write what is right and what is not to the files of a mount, and read and list them, while the program runs: each comes to
// its end, and an event of an instance that none of them touches has all the calls.
func TestMountCrowd(t *testing.T) {
	p := program(t, "opens")
	before := stateOf(t, p.PID)
	m := mount(t, p)
	m.is(`echo 'p:keep/all do_sys_open' >> kprobe_events; mkdir instances/keep; echo 1 > instances/keep/events/keep/all/enable`, "")
	end := time.Now().Add(lasting(5 * time.Second)).Unix()
	const shells = 16
	ended := make(chan error, shells)
	for i := range shells {
		cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("I=%d END=%d\n%s", i, end, crowding))
		var said bytes.Buffer
		cmd.Dir, cmd.Stdout, cmd.Stderr = m.dir, &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		go func() {
			err := cmd.Wait()
			if said.Len() > 0 {
				err = fmt.Errorf("%w: %s", err, said.Bytes())
			}
			ended <- err
		}()
	}
	calls, late := 0, time.After(lasting(5*time.Second)+3*patience)
	for n := 0; n < shells; time.Sleep(5 * time.Millisecond) { // with 17 events at a call the reader of records must keep pace
		right(t, p, "go 50")
		calls += 50
		select {
		case err := <-ended:
			n++
			if err != nil {
				t.Errorf("a shell: %v", err)
			}
		case <-late:
			t.Fatalf("%d of %d shells have ended", n, shells)
		default:
		}
	}
	m.is(`grep all kprobe_profile; grep -v ^p:keep kprobe_events; ls instances events | grep '^[gi][0-9]'`, fmt.Sprintf("  %-44s %15d %15d\n", "all", calls, 0))
	written := regexp.MustCompile(`entries-written: \d+/(\d+) `).FindStringSubmatch(sh(t, m.dir, "head -5 instances/keep/trace"))
	if written == nil || written[1] != strconv.Itoa(calls) {
		t.Errorf("%q records of %d calls", written, calls)
	}
	t.Logf("%d calls", calls)
	if err := unix.Unmount(m.dir, 0); err != nil {
		t.Error(err)
	}
	if err := m.ended(); err != nil {
		t.Errorf("%v: %s", err, m.errs)
	}
	before.same(t)
}
