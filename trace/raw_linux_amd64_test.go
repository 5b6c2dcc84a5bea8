package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/ringpage"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// rawPipes makes a raw reader of each CPU.
func rawPipes(in *Instance) (pipes []*Pipe) {
	for cpu := range in.CPUs() {
		pipes = append(pipes, in.CPURawPipe(cpu))
	}
	return pipes
}

// packed counts the records of pages by their numbers, and what the pages say was lost before them.
func packed(t *testing.T, pages []byte) (ids map[uint16]int, lost int) {
	t.Helper()
	ids = map[uint16]int{}
	if len(pages)%ringpage.PageSize != 0 {
		t.Errorf("%d bytes are no whole pages", len(pages))
	}
	for page := range slices.Chunk(pages, ringpage.PageSize) {
		l, err := ringpage.Read(page, func(_ uint64, data []byte) error {
			ids[binary.LittleEndian.Uint16(data)]++
			return nil
		})
		must(t, err)
		lost += int(l.N)
	}
	return ids, lost
}

// rest reads what has been recorded, so many bytes at once.
func rest(t *testing.T, in *Instance, pipes []*Pipe, n int) (pages []byte) {
	t.Helper()
	in.drain()
	for _, p := range pipes {
		for {
			b, err := p.Read(t.Context(), n, false)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			must(t, err)
			pages = append(pages, b...)
		}
	}
	return pages
}

// A raw pipe gives whole pages, however they are read, and all records once; it does not end where tracing is off, as the kernel's does not
// (tracing_buffers_read), while the text of trace_pipe does.
func TestRawPipe(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.Enable("", "", true))
	pipes := rawPipes(in)
	if got := rest(t, in, pipes, ringpage.PageSize); len(got) != 0 {
		t.Errorf("%d bytes of no records", len(got))
	}
	id := uint16(in.entries[key("kprobes", "a")].id)
	for _, n := range []int{ringpage.PageSize, 100, 3 * ringpage.PageSize, 1 << 20} {
		want := goes(prog, 300, "f_push")
		ids, lost := packed(t, rest(t, in, pipes, n))
		if ids[id] != want || len(ids) != 1 || lost != 0 {
			t.Errorf("reads of %d bytes: %v and %d lost, %d hits of %d", n, ids, lost, want, id)
		}
	}

	in.SetTracing(false)
	for _, p := range pipes {
		if ready, more := p.Ready(); ready || more == nil {
			t.Errorf("CPU %d is to be read where there is nothing", p.cpu)
		}
		if b, err := p.Read(t.Context(), ringpage.PageSize, false); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("CPU %d, tracing off: %d bytes, %v", p.cpu, len(b), err)
		}
	}
	in.SetTracing(true)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var pages []byte
	for _, p := range pipes {
		wg.Go(func() {
			for {
				b, err := p.Read(ctx, ringpage.PageSize, true)
				if err != nil {
					return
				}
				mu.Lock()
				pages = append(pages, b...)
				if ids, _ := packed(t, pages); ids[ringpage.PrintID] > 0 {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	if _, err := in.Mark(unix.Gettid(), "told\n"); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if ids, _ := packed(t, pages); ids[ringpage.PrintID] != 1 || !bytes.Contains(pages, []byte("told\n\x00")) {
		t.Errorf("who waits reads %v", ids)
	}
}

// pinned starts a program whose calls, and so its hits, are all on CPU 0, and an instance with an event of them.
func pinned(t testing.TB, ring int, o *Options) (*testprog.Proc, *Instance) {
	t.Helper()
	prog := testprog.Start(t, testprog.Build(t, "rate"))
	prog.Counts("rate 1000000000")
	var set unix.CPUSet
	set.Set(0)
	must(t, unix.SchedSetaffinity(prog.PID, &set))
	_, in := instanceWith(t, prog, &process.TargetOptions{Buffer: ring}, o)
	must(t, in.Write("p:a rate_call v=%di"))
	must(t, in.Enable("", "", true))
	return prog, in
}

// A raw pipe that is read too late says in its pages how much it missed: its records and those add up.
func TestRawPipeLoses(t *testing.T) {
	prog, in := pinned(t, 0, &Options{BufferSize: 1})
	const calls = 20_000
	prog.Counts(fmt.Sprintf("go %d", calls))
	in.drain()
	prog.Counts("go 1") // what was lost is told before it
	ids, lost := packed(t, rest(t, in, rawPipes(in), ringpage.PageSize))
	if got := ids[uint16(in.entries[key("kprobes", "a")].id)]; got+lost != calls+1 || got == 0 || lost == 0 {
		t.Errorf("%d hits: %d records, %d told as lost", calls+1, got, lost)
	}
}

// What finds the program's ring full is told of by each file: by the pages of trace_pipe_raw, by lines of trace_pipe, as dropped events of stats, in
// the head of trace, for its CPU, and once.
func TestRingLoses(t *testing.T) {
	prog, in := pinned(t, 64<<10, &Options{BufferSize: 64 << 20})
	const calls = 40_001
	burst := func() (lost int) {
		t.Helper()
		before := in.losses()
		in.pollMu.Lock()
		prog.Counts(fmt.Sprintf("go %d", calls-1))
		in.pollMu.Unlock()
		if lost = int(in.losses() - before); lost == 0 {
			t.Fatalf("nothing of %d calls is lost: the test shows nothing", calls)
		}
		in.drain()
		prog.Counts("go 1") // what was lost is told before it
		return lost
	}
	written := func(f func(io.Writer) error) (n int) {
		t.Helper()
		_, rest, _ := strings.Cut(text(t, f), "entries-in-buffer/entries-written: ")
		_, rest, _ = strings.Cut(rest, "/")
		_, err := fmt.Sscan(rest, &n)
		must(t, err)
		return n
	}

	lost, dropped := burst(), 0
	_, stats, _ := strings.Cut(text(t, func(w io.Writer) error { return in.WriteCPUStats(w, 0) }), "dropped events: ")
	_, err := fmt.Sscan(stats, &dropped)
	must(t, err)
	one, all := written(func(w io.Writer) error { return in.WriteCPUTrace(w, 0) }), written(in.WriteTrace)
	if dropped != lost || one != calls || all != calls {
		t.Errorf("the ring lost %d of %d: stats say %d, and the heads of trace %d and %d", lost, calls, dropped, one, all)
	}
	ids, told := packed(t, rest(t, in, rawPipes(in), 64<<10))
	if got := ids[uint16(in.entries[key("kprobes", "a")].id)]; got+told != calls || told != lost {
		t.Errorf("the ring lost %d of %d: pages have %d, and tell of %d", lost, calls, got, told)
	}

	lost = burst()
	in.drain()
	p := in.Pipe()
	var lines []byte
	for {
		b, err := p.Read(t.Context(), 1<<20, false)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		must(t, err)
		lines = append(lines, b...)
	}
	told = 0
	for _, m := range regexp.MustCompile(`(?m)^CPU:0 \[LOST (\d+) EVENTS\]$`).FindAllSubmatch(lines, -1) {
		n, _ := strconv.Atoi(string(m[1]))
		told += n
	}
	if got := bytes.Count(lines, []byte(" a: (")); got+told != calls || told != lost {
		t.Errorf("the ring lost %d of %d: trace_pipe has %d, and tells of %d", lost, calls, got, told)
	}
	in.Clear()
	if head := text(t, in.WriteTrace); !strings.Contains(head, "entries-in-buffer/entries-written: 0/0 ") {
		t.Errorf("behind Clear:\n%s", head)
	}
	in.SetTracing(false)
	burst()
	if n := written(in.WriteTrace); n != 0 {
		t.Errorf("%d written while tracing was off", n)
	}
}

// A page is given whole, or nothing is taken: also behind a read that ended within one.
func TestRawPage(t *testing.T) {
	prog, in := pinned(t, 0, nil)
	p := in.CPURawPipe(0)
	if b, err := p.Page(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("of nothing: %d bytes, %v", len(b), err)
	}
	const calls = 2000
	prog.Counts(fmt.Sprintf("go %d", calls))
	in.drain()
	pages, err := p.Page()
	must(t, err)
	part, err := p.Read(t.Context(), 100, false)
	must(t, err)
	for range 2 {
		if b, err := p.Page(); !errors.Is(err, unix.EINVAL) {
			t.Errorf("within a page: %d bytes, %v", len(b), err)
		}
	}
	pages = append(append(pages, part...), rest(t, in, []*Pipe{p}, 1<<20)...)
	ids, lost := packed(t, pages)
	if got := ids[uint16(in.entries[key("kprobes", "a")].id)]; got != calls || lost != 0 {
		t.Errorf("%d of %d records, %d lost", got, calls, lost)
	}
	must(t, in.Close())
	if b, err := p.Page(); !errors.Is(err, unix.ENODEV) {
		t.Errorf("behind the end: %d bytes, %v", len(b), err)
	}
}
