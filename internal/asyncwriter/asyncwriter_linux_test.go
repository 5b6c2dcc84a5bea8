package asyncwriter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// direct says whether the kernel has O_DIRECT set for a file.
func direct(t *testing.T, f *os.File) bool {
	t.Helper()
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	return flags&unix.O_DIRECT != 0
}

// TestWriterKeepsAll writes pieces of all lengths, as many as end within a block, at its end,
// and behind a byte of the file, where nothing can go past the cache.
func TestWriterKeepsAll(t *testing.T) {
	for _, total := range []int{0, 1, block, 5*block - 1, 64 * block, 64*block + 7} {
		for _, head := range []string{"", "x"} {
			for _, n := range []int{0, 1, 3} {
				t.Run(fmt.Sprintf("%d+%d by %d", len(head), total, n), func(t *testing.T) { writeAll(t, head, total, n) })
			}
		}
	}
}

func writeAll(t *testing.T, head string, total, n int) {
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(head); err != nil {
		t.Fatal(err)
	}
	want := []byte(head)
	w := NewWriter(f, 3*block-5, n)
	rng := rand.New(rand.NewPCG(1, uint64(total)))
	for left := total; left > 0; {
		p := make([]byte, min(left, rng.IntN(2*block)))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		want, left = append(want, p...), left-len(p)
		if k, err := w.Write(p); k != len(p) || err != nil {
			t.Fatalf("Write gave %d, %v, not %d", k, err, len(p))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes, not the %d that were written", len(got), len(want))
	}
	if direct(t, f) {
		t.Error("O_DIRECT is still set after Close")
	}
	if _, err := w.Write([]byte{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestWriterDoesNotWait fills all buffers while nothing is taken; a pipe holds 64 KiB.
func TestWriterDoesNotWait(t *testing.T) {
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const size = 256 << 10
	w := NewWriter(p, size, 3)
	if direct(t, p) {
		t.Error("O_DIRECT is set, which makes packets of what goes into a pipe")
	}
	for range 3 { // one is being written, one waits, one is full
		if _, err := w.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, r)
		got <- n
	}()
	if err := errors.Join(w.Close(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if n := <-got; n != 3*size {
		t.Errorf("%d bytes came, %d were written", n, 3*size)
	}
}

// TestWriterTellsErrors wants the file's error from Close, and that nothing hangs before it.
func TestWriterTellsErrors(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := NewWriter(f, block, 2)
	for range 100 {
		if _, err := w.Write(make([]byte, block)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := w.Close(); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Close gave %v", err)
		}
	}
}
