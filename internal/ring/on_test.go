package ring

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// memory gives n bytes of dirty memory that starts at a multiple of 8.
func memory(n uint64) []byte {
	words := make([]uint64, n/8)
	for i := range words {
		words[i] = ^uint64(0)
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// TestOn writes to a ring over foreign memory, on all its shards, takes it over with another
// reader and closes it, and the memory stays.
func TestOn(t *testing.T) {
	for _, only := range []bool{false, true} {
		cfg := Config{CPUs: 2, Events: 128, DataSize: 16 << 10, LockedOnly: only}
		l, err := NewLayout(cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(PageSize + 4*64<<10)
		if only {
			want = PageSize + 2*64<<10
		}
		if l.Size() != want || l.Stride != 64<<10 {
			t.Fatalf("locked only %v: %d bytes, shards of %d", only, l.Size(), l.Stride)
		}
		mem := memory(l.Size() + 64)
		r, err := On(mem, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Shards() {
			checkZero(t, r, i)
		}
		if err := r.PrepareEvents(128); err != nil {
			t.Error(err)
		}
		rd, clock := newTestReader(t, r)
		var got []uint64
		for cpu := range 2 {
			writerOf(r, r.Locked(cpu)).write(1, 1, uint64(cpu+1), 7)
		}
		clock.now = 2000
		var cpus []int
		rd.Poll(func(rec Record) { cpus = append(cpus, rec.CPU) })
		if d := cmp.Diff([]int{0, 1}, cpus); d != "" {
			t.Errorf("locked only %v: CPUs (-want +got):\n%s", only, d)
		}
		abandon(r, r.Locked(1), 3)
		rd.Poll(collect(t, &got))
		if s := rd.Stalls(); len(s) != 1 || s[0].Shard != r.Locked(1) || s[0].Corrupt {
			t.Fatalf("locked only %v: stalls %+v", only, s)
		}
		if n := rd.Reap(rd.Mark()); n != 1 || len(rd.Stalls()) != 0 {
			t.Errorf("locked only %v: %d records reaped, stalls %+v", only, n, rd.Stalls())
		}
		if h, err := parseHeader(mem[:headerSize]); err != nil || h != l {
			t.Errorf("locked only %v: header %+v, %v", only, h, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if load(mem, HdrMagic) != Magic || load(mem, l.Size()) != ^uint64(0) {
			t.Error("the memory has changed behind the ring, or with Close")
		}
	}
}

// TestOnErrors gives memory and sizes that do not do.
func TestOnErrors(t *testing.T) {
	mem := memory(PageSize + 64<<10)
	ok := Config{CPUs: 1, Events: 1, DataSize: MinData, LockedOnly: true}
	if _, err := On(mem, ok); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		mem  []byte
		cfg  Config
		want error
	}{
		{"too small", mem[:len(mem)-8], ok, unix.ENOSPC},
		{"nothing", nil, ok, unix.ENOSPC},
		{"with rseq shards", mem, Config{CPUs: 1, Events: 1, DataSize: MinData}, unix.ENOSPC},
		{"not aligned", memory(PageSize + 64<<10 + 8)[4:], ok, unix.EINVAL},
		{"no CPUs", mem, Config{LockedOnly: true}, unix.EINVAL},
	} {
		if _, err := On(c.mem, c.cfg); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestLockedOnlyFile opens a ring without rseq shards from its file.
func TestLockedOnlyFile(t *testing.T) {
	r := newTestRing(t, Config{CPUs: 3, Events: 8, DataSize: MinData, LockedOnly: true})
	again, err := Open(r.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Layout != r.Layout || again.Shards() != 3 || !again.IsLocked(0) || again.Locked(2) != 2 {
		t.Errorf("opened as %+v", again.Layout)
	}
	writerOf(again, 2).write(2, 5, 10, 1, 2)
	rd, _ := newTestReader(t, r)
	var got []uint64
	rd.Poll(collect(t, &got))
	if d := cmp.Diff([]uint64{10}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestKeep takes the memory away while records are still unread.
func TestKeep(t *testing.T) {
	cfg := Config{CPUs: 1, Events: 8, DataSize: MinData, LockedOnly: true}
	l, err := NewLayout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, l.Size())
	r, err := On(mem, cfg)
	if err != nil {
		t.Fatal(err)
	}
	rd, _ := newTestReader(t, r)
	w := writerOf(r, 0)
	w.write(1, 1, 10)
	w.write(1, 1, 20)
	r.Keep()
	clear(mem)
	var got []uint64
	rd.Poll(collect(t, &got))
	if len(got) != 2 || got[0] != 10 || got[1] != 20 {
		t.Errorf("read %v", got)
	}
	for _, b := range mem {
		if b != 0 {
			t.Fatal("the reader has written to memory that is not the ring's any more")
		}
	}
}
