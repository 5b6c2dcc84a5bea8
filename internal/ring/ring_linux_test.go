package ring

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCreateDefaults(t *testing.T) {
	r := newTestRing(t, Config{DataSize: MinData})
	cpus, err := possibleCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if r.CPUs != cpus || r.Events != DefaultEvents {
		t.Errorf("%d CPUs, %d events; want %d, %d", r.CPUs, r.Events, cpus, DefaultEvents)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(maps), "/memfd:"+memfdName) {
		t.Error("no mapping named " + memfdName)
	}
}

// TestSealed tries what would pull the pages away from under reader or writer.
func TestSealed(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, DataSize: MinData})
	for _, size := range []uint64{0, PageSize, r.Size() - 1, r.Size() + 1} {
		if err := unix.Ftruncate(r.FD(), int64(size)); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(r.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("another seal: %v, want EPERM", err)
	}
}

// TestSparseLocked: a locked shard of a sparse ring that is large gets few pages at a time, and those that a writer
// fills before the next look are always there already.
func TestSparseLocked(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 8, DataSize: 8 << 20, Sparse: true})
	rd, _ := newTestReader(t, r)
	const shard = 1
	blocks := func() uint64 {
		var st unix.Stat_t
		if err := unix.Fstat(r.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return uint64(st.Blocks) * 512
	}
	var got []uint64
	w := writerOf(r, shard)
	if err := r.PrepareEvents(8); err != nil { // a full shard counts
		t.Fatal(err)
	}
	bare := blocks()
	w.write(1, 1, 1)
	rd.Poll(collect(t, &got))
	if n := blocks() - bare; n < lockedBytes || n > 2*lockedBytes+2*Slack {
		t.Errorf("%d bytes came in with the first record, want those of %d or twice as many", n, lockedBytes)
	}
	written := 1
	for range 2 * r.Data / lockedBytes {
		before := blocks()
		for w.write(1, 1, 1, 1, 2, 3, 4, 5, 6) {
			written++
		}
		if after := blocks(); after != before {
			t.Errorf("after %d records: the writer brought in %d bytes", written, after-before)
		}
		rd.Poll(collect(t, &got))
	}
	if len(got) != written {
		t.Errorf("%d records read, %d written", len(got), written)
	}
	if n := blocks() - bare; n != r.Data+Slack {
		t.Errorf("%d bytes came in, want %d", n, r.Data+Slack)
	}
	checkZero(t, r, shard)
}

// TestPagesPresent asks the file which pages exist: all data, no counters until they are
// prepared.
func TestPagesPresent(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 1, Events: 4096, DataSize: 64 << 10})
	blocks := func() uint64 {
		var st unix.Stat_t
		if err := unix.Fstat(r.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return uint64(st.Blocks) * 512
	}
	want := PageSize + uint64(r.Shards())*(PageSize+r.Data+Slack)
	if got := blocks(); got != want {
		t.Errorf("%d bytes present, want %d", got, want)
	}
	if err := r.PrepareEvents(200); err != nil {
		t.Fatal(err)
	}
	want += uint64(r.Shards()) * 2 * PageSize // 200 * 32 bytes
	if got := blocks(); got != want {
		t.Errorf("with counters %d bytes present, want %d", got, want)
	}
	for _, n := range []int{-1, 4097} {
		if err := r.PrepareEvents(n); !errors.Is(err, unix.EINVAL) {
			t.Errorf("counters of %d events: %v, want EINVAL", n, err)
		}
	}
}

func TestOpenJoins(t *testing.T) {
	a := newTestRing(t, Config{CPUs: 2, Events: 10, DataSize: MinData})
	b, err := Open(a.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.Layout != b.Layout {
		t.Errorf("layout %+v, joined as %+v", a.Layout, b.Layout)
	}
	for i := range a.Shards() {
		store(b.mem, b.ShardOff(i)+b.CounterOff(7)+CtrHits, 1)
		store(b.mem, b.ShardOff(i)+b.CounterOff(7)+CtrLost, 10)
		store(b.mem, b.ShardOff(i)+b.CounterOff(7)+CtrMissed, 100)
		store(b.mem, b.ShardOff(i)+b.CounterOff(7)+CtrUnwound, 1000)
	}
	if got, want := a.Sum(7), (Counters{Hits: 4, Lost: 40, Missed: 400, Unwound: 4000}); got != want {
		t.Errorf("sum %+v, want %+v", got, want)
	}
	if got := a.Sum(6); got != (Counters{}) {
		t.Errorf("neighbour's sum %+v", got)
	}
	a.ClearCounters(7)
	if got := b.Sum(7); got != (Counters{}) {
		t.Errorf("cleared, but %+v", got)
	}
	if a.Sum(-1) != (Counters{}) || a.Sum(10) != (Counters{}) {
		t.Error("events beyond the table have counters")
	}
}

// TestOpenHostile gives Open files that anyone may have made.
func TestOpenHostile(t *testing.T) {
	good := func(size int64) map[uint64]uint64 {
		l, err := NewLayout(Config{CPUs: 1, Events: 1, DataSize: MinData})
		if err != nil {
			t.Fatal(err)
		}
		return map[uint64]uint64{HdrMagic: Magic, HdrVersion: Version, HdrNCPU: 1, HdrEvents: 1, HdrData: MinData, HdrStride: l.Stride, 1 << 62: uint64(size)}
	}
	const size = 4096 + 2*65536
	for name, change := range map[string]struct{ off, value uint64 }{
		"magic":                   {HdrMagic, 1},
		"version":                 {HdrVersion, 5},
		"flags without a version": {HdrFlags, FlagLockedOnly},
		"no cpus":                 {HdrNCPU, 0},
		"more cpus":               {HdrNCPU, 2},
		"endless cpus":            {HdrNCPU, 1 << 63},
		"no events":               {HdrEvents, 0},
		"endless events":          {HdrEvents, 1 << 40},
		"odd data":                {HdrData, MinData + 1},
		"no data":                 {HdrData, 0},
		"endless data":            {HdrData, 1 << 62},
		"stride":                  {HdrStride, 0},
		"size":                    {1 << 62, size - 1},
		"shorter than its header": {1 << 62, 40},
	} {
		t.Run(name, func(t *testing.T) {
			hdr := good(size)
			hdr[change.off] = change.value
			fd := fakeRing(t, hdr, seals)
			if _, err := Open(fd); !errors.Is(err, ErrNotRing) {
				t.Errorf("%v, want ErrNotRing", err)
			}
		})
	}
	if r, err := Open(fakeRing(t, good(size), seals)); err != nil {
		t.Errorf("the unchanged one: %v", err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(fakeRing(t, good(size), unix.F_SEAL_GROW|unix.F_SEAL_SEAL)); !errors.Is(err, ErrNotRing) {
		t.Errorf("not sealed against shrinking: %v, want ErrNotRing", err)
	}
}

// fakeRing is a memfd with header fields as told; the key 1<<62 is its size.
func fakeRing(t *testing.T, hdr map[uint64]uint64, seal int) int {
	t.Helper()
	fd, err := newMemfd()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, PageSize); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, headerSize)
	for off, v := range hdr {
		if off < headerSize {
			store(b, off, v)
		}
	}
	if _, err := unix.Pwrite(fd, b, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(hdr[1<<62])); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestOpenNoMemfd(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Open(int(f.Fd())); !errors.Is(err, ErrNotRing) {
		t.Errorf("a plain file: %v, want ErrNotRing", err)
	}
	if _, err := Open(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v, want EBADF", err)
	}
}

func TestCloseTwice(t *testing.T) {
	r, err := Create(Config{CPUs: 1, DataSize: MinData})
	if err != nil {
		t.Fatal(err)
	}
	fd := r.FD()
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("descriptor after close: %v, want EBADF", err)
	}
}
