package trace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
)

// allCPUs is the mask of all CPUs of an instance.
func allCPUs(in *Instance) string { return maskText(func(int) bool { return true }, in.CPUs()) }

// TestCPUMask records nothing of CPUs that are not in the mask; their hits are counted.
func TestCPUMask(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push"))
	must(t, in.Enable("", "", true))
	if got := in.CPUMask(); got != allCPUs(in) {
		t.Errorf("mask %s at first, want %s", got, allCPUs(in))
	}
	must(t, in.SetCPUMask("0\n"))
	n := goes(prog, 20, "f_push")
	if out := text(t, in.WriteTrace); strings.Contains(out, ": a: ") {
		t.Errorf("records of CPUs that are not in the mask:\n%.400s", out)
	}
	if got := text(t, in.WriteProfile); got != hit.ProfileLine("a", uint64(n), 0) || n == 0 {
		t.Errorf("%d hits, profile %s", n, got)
	}
	if _, err := in.Mark(unix.Getpid(), "text"); !errors.Is(err, unix.EBADF) {
		t.Errorf("a marker of a CPU that is not in the mask: %v", err)
	}
	must(t, in.SetCPUMask("1"))
	goes(prog, 200, "f_push")
	for line := range strings.Lines(text(t, in.WriteTrace)) {
		if strings.Contains(line, ": a: ") && !strings.Contains(line, "[000]") {
			t.Errorf("the mask is that of CPU 0: %s", line)
			break
		}
	}
	must(t, in.SetCPUMask(allCPUs(in)))
	in.Clear()
	n = goes(prog, 20, "f_push")
	if got := strings.Count(text(t, in.WriteTrace), ": a: "); got != n {
		t.Errorf("%d records of %d hits", got, n)
	}
	if err := in.SetCPUMask("x"); !errors.Is(err, unix.EINVAL) || in.CPUMask() != allCPUs(in) {
		t.Errorf("a mask that is none: %v; %s", err, in.CPUMask())
	}
}

// TestMarkRaw shows bytes that were written with a number.
func TestMarkRaw(t *testing.T) {
	_, in := instance(t, nil)
	n, err := in.MarkRaw(unix.Getpid(), "\x1f\x00\x00\x00abc\n")
	if n != 8 || err != nil {
		t.Errorf("%d bytes taken, %v", n, err)
	}
	if out := text(t, in.WriteTrace); !strings.HasSuffix(out, ": # 1f buf: 61 62 63 0a\n") {
		t.Errorf("the trace is\n%s", out)
	}
	for _, data := range []string{"", "abc", strings.Repeat("x", maxRawMark+1)} {
		if n, err := in.MarkRaw(unix.Getpid(), data); n != 0 || !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d bytes: %d taken, %v", len(data), n, err)
		}
	}
	in.SetTracing(false)
	if n, err := in.MarkRaw(unix.Getpid(), "abcd"); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("with tracing off %d bytes are taken, %v", n, err)
	}
}

// TestBufferPercent has who polls a CPU's records wait until the buffer is so full, and who polls all records only for one.
func TestBufferPercent(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.SetBufferSize(AllCPUs, 1<<20))
	must(t, in.Write("p:a f_push"))
	must(t, in.Enable("", "", true))
	goes(prog, 20, "f_push")
	in.drain()
	ready := func(pipes ...*Pipe) bool {
		return slices.ContainsFunc(pipes, func(p *Pipe) bool { ok, _ := p.Ready(); return ok })
	}
	var pipes []*Pipe
	for cpu := range in.CPUs() {
		pipes = append(pipes, in.CPUPipe(cpu), in.CPURawPipe(cpu))
	}
	if in.BufferPercent() != DefaultBufferPercent || ready(pipes...) || !ready(in.Pipe()) {
		t.Errorf("at %d percent: of a CPU ready %t, of all %t", in.BufferPercent(), ready(pipes...), ready(in.Pipe()))
	}
	_, more := pipes[0].Ready()
	must(t, in.SetBufferPercent(0))
	select {
	case <-more:
	default:
		t.Error("who polls does not look again when the percentage changes")
	}
	if !ready(pipes...) {
		t.Error("at 0 percent no record is enough")
	}
	must(t, in.SetBufferPercent(100))
	for i := 0; !ready(pipes...); i++ {
		if i == 1000 {
			t.Fatal("a buffer that is full is not")
		}
		goes(prog, 500, "f_push")
		in.drain()
	}
	for _, n := range []int{-1, 101} {
		if err := in.SetBufferPercent(n); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d percent: %v", n, err)
		}
	}
}

// TestRawSnapshot reads the pages of a snapshot once, and ends.
func TestRawSnapshot(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.Enable("", "", true))
	pages := func() (out []byte) {
		for cpu := range in.CPUs() {
			p := in.CPURawSnapshot(cpu)
			for {
				b, err := p.Read(t.Context(), ringpage.PageSize, true)
				if err != nil {
					break
				}
				out = append(out, b...)
			}
		}
		return out
	}
	if b := pages(); len(b) > 0 {
		t.Errorf("%d bytes of no snapshot", len(b))
	}
	n := goes(prog, 300, "f_push")
	in.Snapshot()
	goes(prog, 10, "f_push")
	id := uint16(in.entries[key("kprobes", "a")].id)
	if ids, lost := packed(t, pages()); ids[id] != n || lost != 0 {
		t.Errorf("%v and %d lost in the snapshot of %d hits of %d", ids, lost, n, id)
	}
	if b := pages(); len(b) > 0 {
		t.Errorf("%d bytes of a snapshot that has been read", len(b))
	}
}

// TestFreeBuffer leaves a buffer as small as the kernel's.
func TestFreeBuffer(t *testing.T) {
	_, in := instance(t, nil)
	in.FreeBuffer()
	if kb := in.BufferSize(AllCPUs) >> 10; kb != 7 {
		t.Errorf("%d KiB", kb)
	}
}

// TestComms keeps so many names.
func TestComms(t *testing.T) {
	_, in := instance(t, nil)
	must(t, in.SetComms(1))
	in.names.mu.Lock()
	for tid := range 6552 {
		in.names.comm[tid+1] = comm{name: fmt.Sprint("t", tid)}
	}
	in.names.mu.Unlock()
	must(t, in.SetComms(1<<15))
	if got := in.Comms(); got != 45874 || in.names.Comm(6552) != "t6551" {
		t.Errorf("%d names are kept; the last is %s", got, in.names.Comm(6552))
	}
	in.names.mu.Lock()
	in.names.comm[6553] = comm{name: "more"}
	in.names.mu.Unlock()
	must(t, in.SetComms(128))
	if got := in.names.Comm(6553); got != noComm {
		t.Errorf("more names are kept than there is room for: %s", got)
	}
	for _, n := range []int{0, -1, 1<<15 + 1} {
		if err := in.SetComms(n); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d threads: %v", n, err)
		}
	}
}
