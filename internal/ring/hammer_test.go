package ring

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// workerEnv makes the test binary a writer process: "NUMBER ATTEMPTS STEP". The ring is
// file descriptor 3. Each of its hammerThreads goroutines has an event of its own, makes
// that many attempts (0: until killed), counts them in the event's counters before
// (Hits) and after (Unwound), and if STEP is not "-", kills its process after that step
// of its 11th attempt.
const workerEnv = "RING_TEST_WORKER"

const hammerThreads = 3

func TestMain(m *testing.M) {
	if job := os.Getenv(workerEnv); job != "" {
		if err := work(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func work(job string) error {
	var number, attempts int
	var step string
	if _, err := fmt.Sscan(job, &number, &attempts, &step); err != nil {
		return err
	}
	r, err := Open(3)
	if err != nil {
		return err
	}
	threads := hammerThreads
	if step != "-" {
		threads = 1
	}
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() { attempt(r, uint32(number*hammerThreads+i), attempts, step) })
	}
	wg.Wait()
	return nil
}

// attempt writes records to all locked shards in turn, whose words can be checked.
func attempt(r *Ring, event uint32, attempts int, step string) {
	count := func(ctr uint64) {
		atomic.AddUint64(word(r.mem, r.ShardOff(0)+r.CounterOff(int(event))+ctr), 1)
	}
	for i := 0; attempts == 0 || i < attempts; i++ {
		w := &lockedWriter{ring: r, shard: r.Locked(i % r.CPUs)}
		if step != "-" {
			w.shard = r.Locked(0)
		}
		if step != "-" && i == 10 {
			w.at = func(s string) {
				if s == step {
					_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				}
			}
		}
		count(CtrHits)
		args := make([]uint64, 1+i%6)
		for j := range args {
			args[j] = mix(event, uint64(i), j)
		}
		args[0] = uint64(i)
		w.write(event, uint32(event), Now(), args...)
		count(CtrUnwound)
	}
}

func mix(event uint32, i uint64, j int) uint64 { return uint64(event)<<48 ^ i*31 + uint64(j) }

// worker starts a writer process; the returned function waits for it.
func worker(t *testing.T, r *Ring, number, attempts int, step string) (*exec.Cmd, func() error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", workerEnv, number, attempts, step))
	cmd.ExtraFiles = []*os.File{ringFile(t, r)}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := false
	wait := func() error {
		waited = true
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("worker %d: %w: %s", number, err, &stderr)
		}
		return nil
	}
	t.Cleanup(func() {
		if !waited {
			_ = cmd.Process.Kill()
			_ = wait()
		}
	})
	return cmd, wait
}

func ringFile(t *testing.T, r *Ring) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(r.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "ring")
	t.Cleanup(func() { f.Close() })
	return f
}

// checker checks every word of hammer records and that each thread's come in order.
type checker struct {
	t    *testing.T
	next map[[2]int]uint64 // by shard and event
}

func (c *checker) check(rec Record) {
	i := word0(rec.Bytes[RecHeader:])
	key := [2]int{rec.Shard, int(rec.Event)}
	if i < c.next[key] {
		c.t.Fatalf("event %d, shard %d: record %d after %d", rec.Event, rec.Shard, i, c.next[key]-1)
	}
	c.next[key] = i + 1
	if want := RecHeader + int(1+i%6)*unit; len(rec.Bytes) != want || rec.TID != uint32(rec.Event) {
		c.t.Fatalf("event %d, record %d: %d bytes, want %d; thread %d", rec.Event, i, len(rec.Bytes), want, rec.TID)
	}
	for j := 1; j < int(1+i%6); j++ {
		if v := word0(rec.Bytes[RecHeader+j*unit:]); v != mix(rec.Event, i, j) {
			c.t.Fatalf("event %d, record %d: word %d is %#x", rec.Event, i, j, v)
		}
	}
}

func hammerReader(t *testing.T, r *Ring) (*Reader, *checker) {
	rd := NewReader(r, nil)
	for e := range r.Events {
		allow(t, rd, uint32(e), 24, 64)
	}
	return rd, &checker{t: t, next: map[[2]int]uint64{}}
}

// account adds up what writers began and ended, and what became of it.
func account(r *Ring, rd *Reader) (begun, ended, known uint64) {
	known = rd.Stats().Dead
	for e := range r.Events {
		tally := rd.Tally(e)
		begun += tally.Hits
		ended += tally.Unwound
		known += tally.Read + tally.Lost
	}
	return begun, ended, known
}

// TestHammerProcesses has 3 processes of 3 threads write to two small locked shards.
func TestHammerProcesses(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 2, Events: 9, DataSize: MinData})
	rd, c := hammerReader(t, r)
	const attempts = 30_000
	done := make(chan error, 3)
	for i := range 3 {
		_, wait := worker(t, r, i, attempts, "-")
		go func() { done <- wait() }()
	}
	for running := 3; running > 0; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running--
		default:
			rd.Poll(c.check)
		}
	}
	rd.Drain(c.check)
	for e := range r.Events {
		if tally := rd.Tally(e); tally.Read+tally.Lost != attempts {
			t.Errorf("event %d: %d read + %d lost of %d", e, tally.Read, tally.Lost, attempts)
		}
	}
	if st := rd.Stats(); st.Corrupt != 0 || st.Dead != 0 || len(rd.Stalls()) != 0 {
		t.Errorf("stats %+v, stalls %+v", st, rd.Stalls())
	}
	for i := range 2 {
		checkZero(t, r, r.Locked(i))
	}
}

// TestHammerKill kills one of three processes again and again in mid-run, and reaps by
// the rule while the others write on.
func TestHammerKill(t *testing.T) {
	const kills = 15
	r := newTestRing(t, Config{CPUs: 2, Events: (kills + 2) * hammerThreads, DataSize: MinData})
	rd, c := hammerReader(t, r)
	var live []*exec.Cmd
	for i := range 2 {
		cmd, _ := worker(t, r, i, 0, "-")
		live = append(live, cmd)
	}
	for k := range kills {
		number := 2 + k
		cmd, wait := worker(t, r, number, 0, "-")
		for r.Sum(number*hammerThreads).Unwound < uint64(100+k) {
			rd.Poll(c.check)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("killed worker: %v", err)
		}
		mark := rd.Mark()
		seenOutside(t, r, rd, c, 2*hammerThreads)
		rd.Reap(mark)
	}
	for _, cmd := range live {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	rd.Drain(c.check)
	rd.Reap(rd.Mark())
	rd.Drain(c.check)
	begun, ended, known := account(r, rd)
	if known < ended || known > begun || begun-ended > (kills+2)*hammerThreads {
		t.Errorf("%d attempts begun, %d ended; %d read, lost or dead", begun, ended, known)
	}
	if st := rd.Stats(); st.Corrupt != 0 || st.Read == 0 || len(rd.Stalls()) != 0 {
		t.Errorf("stats %+v, %v, stalls %+v", st, rd.Corruption(), rd.Stalls())
	}
	t.Logf("%d attempts, stats %+v", begun, rd.Stats())
}

// seenOutside waits until each of the first n threads has ended an attempt since the
// call: so each was outside of the protocol after it.
func seenOutside(t *testing.T, r *Ring, rd *Reader, c *checker, n int) {
	t.Helper()
	before := make([]uint64, n)
	for e := range n {
		before[e] = r.Sum(e).Unwound
	}
	for e := range n {
		for r.Sum(e).Unwound == before[e] {
			rd.Poll(c.check)
		}
	}
}

// TestDeathAtStep kills a process after each step of the protocol, with records of
// another process before and behind, and knows exactly what must come of it.
func TestDeathAtStep(t *testing.T) {
	for _, s := range []struct {
		step string
		read uint64 // of the dead one's 11 records
		dead uint64 // with 5 records of the other behind
	}{{"reserved", 10, 6}, {"filled", 10, 6}, {"committed", 11, 0}} {
		t.Run(s.step, func(t *testing.T) {
			r := newTestRing(t, Config{CPUs: 1, Events: 6, DataSize: MinData})
			rd, c := hammerReader(t, r)
			_, wait := worker(t, r, 0, 0, s.step)
			if err := wait(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("worker: %v", err)
			}
			attempt(r, 4, 5, "-")
			rd.Drain(c.check)
			if stalled := len(rd.Stalls()) == 1; stalled != (s.dead > 0) {
				t.Errorf("stalls %+v", rd.Stalls())
			}
			if dead := rd.Reap(rd.Mark()); dead != s.dead {
				t.Errorf("%d dead, want %d", dead, s.dead)
			}
			attempt(r, 5, 5, "-")
			rd.Drain(c.check)
			if read := rd.Tally(0).Read; read != s.read {
				t.Errorf("%d of the dead process read, want %d", read, s.read)
			}
			begun, _, known := account(r, rd)
			if begun != 21 || known != begun || rd.Tally(5).Read != 5 {
				t.Errorf("%d attempts, %d known, %d read after the reaping", begun, known, rd.Tally(5).Read)
			}
			checkZero(t, r, 1)
		})
	}
}

// TestScribble overwrites the ring at random while writers of both kinds and the reader
// are at work: nothing may crash or hang, and once it is over the ring works again.
func TestScribble(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 2, Events: 8, DataSize: MinData})
	rd := NewReader(r, nil)
	for e := range 8 {
		allow(t, rd, uint32(e), 16, 64)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for shard := range r.Shards() {
		wg.Go(func() {
			for i := uint64(0); !stop.Load(); i++ {
				writerOf(r, shard).write(uint32(i%8), 1, Now(), i, i)
			}
		})
	}
	wg.Go(func() { scribble(r, &stop) })
	for rd.Stats().Corrupt < 500 {
		rd.Poll(func(rec Record) {
			if len(rec.Bytes) < 16 || len(rec.Bytes) > 64 || rec.Event > 7 {
				t.Errorf("impossible record %+v", rec)
			}
		})
		if len(rd.Stalls()) > 0 {
			rd.Reap(rd.Mark())
		}
	}
	stop.Store(true)
	wg.Wait()
	recovers(t, r, rd)
}

func scribble(r *Ring, stop *atomic.Bool) {
	x := uint64(1)
	for !stop.Load() {
		x = x*6364136223846793005 + 1442695040888963407
		shard := int(x>>60) % r.Shards()
		off := []uint64{ShHead, ShTail, ShRead, r.DataOff() + x>>40%(r.Data+Slack)&^7}[x>>33&3]
		poke(r, shard, off, x>>(x&63))
	}
}

// recovers checks that an honest record comes through in every shard once the reader
// has seen to the damage.
func recovers(t *testing.T, r *Ring, rd *Reader) {
	t.Helper()
	for range 3 {
		rd.Drain(func(Record) {})
		rd.Reap(rd.Mark())
	}
	if s := rd.Stalls(); len(s) != 0 {
		t.Fatalf("stalls %+v after reaping", s)
	}
	for shard := range r.Shards() {
		if !writerOf(r, shard).write(1, 12345, 1, 77) {
			t.Fatalf("shard %d: full", shard)
		}
		n := 0
		rd.Drain(func(rec Record) {
			if rec.Shard != shard || rec.TID != 12345 || word0(rec.Bytes[RecHeader:]) != 77 {
				t.Errorf("shard %d: %+v", shard, rec)
			}
			n++
		})
		if n != 1 {
			t.Errorf("shard %d: %d records, want 1", shard, n)
		}
	}
}
