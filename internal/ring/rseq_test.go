//go:build amd64

package ring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestHammerRseq runs testdata/rseqwriter.c: 6 threads, half of them moving between the
// CPUs, all of them interrupted by signals whose handler writes too.
func TestHammerRseq(t *testing.T) {
	const threads, attempts = 6, 300_000
	for name, size := range map[string]int{"small": MinData, "large": DefaultData} {
		t.Run(name, func(t *testing.T) {
			r := newTestRing(t, Config{Events: 2 * threads, DataSize: size})
			rd := NewReader(r, nil)
			for e := range r.Events {
				allow(t, rd, uint32(e), 48, 48)
			}
			c := rseqChecker{t: t, seq: map[[2]int]uint64{}, tsc: map[int]uint64{}}
			out := runRseqWriter(t, r, rd, c.check, threads, attempts)
			rd.Drain(c.check)
			handled := checkAttempts(t, rd, out)
			if st := rd.Stats(); st.Corrupt != 0 || len(rd.Stalls()) != 0 || st.Read == 0 {
				t.Errorf("stats %+v, %v", st, rd.Corruption())
			}
			if handled == 0 {
				t.Error("no signal arrived")
			}
			t.Logf("%d in handlers, stats %+v", handled, rd.Stats())
		})
	}
}

// runRseqWriter compiles and runs the writer, polls until it ends and returns what it
// printed.
func runRseqWriter(t *testing.T, r *Ring, rd *Reader, fn func(Record), threads, attempts int) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "rseqwriter")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-pthread", "-o", bin, "testdata/rseqwriter.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc (install Debian's package gcc if it is missing): %v\n%s", err, out)
	}
	cmd := exec.Command(bin, strconv.Itoa(threads), strconv.Itoa(attempts))
	cmd.ExtraFiles = []*os.File{ringFile(t, r)}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("rseqwriter: %v: %s", err, &stderr)
			}
			return stdout.String()
		default:
			rd.Poll(fn)
		}
	}
}

// checkAttempts compares what the writer says it did with what arrived or was counted
// as lost, event by event, and returns the attempts of the signal handlers.
func checkAttempts(t *testing.T, rd *Reader, out string) (handled uint64) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		var event int
		var attempts uint64
		if _, err := fmt.Sscan(line, &event, &attempts); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if tally := rd.Tally(event); tally.Runs() != attempts {
			t.Errorf("event %d: %d read + %d lost of %d attempts", event, tally.Read, tally.Lost, attempts)
		}
		if event >= len(lines)/2 {
			handled += attempts
		}
	}
	return handled
}

// rseqChecker checks every word, that times in a shard never go back, and that a
// thread's records in a shard come in order.
type rseqChecker struct {
	t   *testing.T
	seq map[[2]int]uint64
	tsc map[int]uint64
}

func (c *rseqChecker) check(rec Record) {
	w := func(i int) uint64 { return word0(rec.Bytes[i*unit:]) }
	if rec.TID != 1000+uint32(rec.Event) || w(3) != ^w(2) || w(4) != w(2) || w(5) != rec.TSC {
		c.t.Fatalf("torn record of event %d: %#x", rec.Event, rec.Bytes)
	}
	if rec.TSC < c.tsc[rec.Shard] {
		c.t.Fatalf("shard %d: time %d after %d", rec.Shard, rec.TSC, c.tsc[rec.Shard])
	}
	c.tsc[rec.Shard] = rec.TSC
	key := [2]int{rec.Shard, int(rec.Event)}
	if w(2) < c.seq[key] {
		c.t.Fatalf("event %d, shard %d: record %d after %d", rec.Event, rec.Shard, w(2), c.seq[key]-1)
	}
	c.seq[key] = w(2) + 1
}
