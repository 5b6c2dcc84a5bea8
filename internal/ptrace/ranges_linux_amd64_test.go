package ptrace

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestReadRanges: what is read of many ranges in few system calls is what is there of each: of one that is as long as the
// buffer, of one that nothing is mapped in, of one that ends behind its mapping, and of one whose pages permit nothing.
func TestReadRanges(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "crowd"), "600")
	p, err := OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, err := p.Stop(&StopOptions{Attempts: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	size := uint64(rangesBytes + 3*procfs.PageSize)
	big, err := s.Mmap(0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	fill := bytes.Repeat([]byte("what lies there "), int(size)/16)
	if err := p.WriteMem(big, fill); err != nil {
		t.Fatal(err)
	}
	hidden := big + size - 2*procfs.PageSize // the last page is unmapped, the one before it permits nothing
	if err := s.Mprotect(hidden, procfs.PageSize, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if err := s.Munmap(hidden+procfs.PageSize, procfs.PageSize); err != nil {
		t.Fatal(err)
	}
	stacks, err := s.LiveStacks(s.Threads(), false)
	if err != nil {
		t.Fatal(err)
	}
	ranges := append(stacks[:len(stacks)/2:len(stacks)/2],
		interval.Range{Start: big, End: hidden}, interval.Range{Start: 64, End: 128}, interval.Range{Start: big + 8, End: big + 8},
		interval.Range{Start: hidden - 64, End: hidden + procfs.PageSize + 64}, interval.Range{Start: hidden + 16, End: hidden + 32},
	)
	ranges = append(ranges, stacks[len(stacks)/2:]...)
	for _, apart := range []bool{false, true} {
		readsRanges(t, s, ranges, apart)
	}
	if _, done := p.ReadMemSome(hidden-64, make([]byte, 128)); done != nil {
		t.Errorf("what permits nothing is not read: %v", done)
	}
}

// readsRanges checks that what is read of ranges is what is there: of many in one system call, or of each apart.
func readsRanges(t *testing.T, s *Stopped, ranges []interval.Range, apart bool) {
	t.Helper()
	s.apart = apart
	got := make([][]byte, len(ranges))
	err := s.ReadRanges(ranges, func(i int, at uint64, b []byte) error {
		if at != ranges[i].Start+uint64(len(got[i])) {
			t.Errorf("range %d: a piece at 0x%x, behind %d bytes", i, at, len(got[i]))
		}
		got[i] = append(got[i], b...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range ranges {
		want := make([]byte, r.Size())
		n, _ := s.p.ReadMemSome(r.Start, want)
		if !bytes.Equal(got[i], want[:n]) {
			t.Errorf("apart %v: range %d, 0x%x to 0x%x: %d bytes were read, and not the %d that are there", apart, i, r.Start, r.End, len(got[i]), n)
		}
	}
	if s.apart != apart {
		t.Errorf("apart was %v, and is %v: it was read by other means than was meant", apart, s.apart)
	}
}
