package workload

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxThreads = 64
)

// lastCPU reads a list of CPUs like "0-3,8" and returns the highest number + 1.
func lastCPU(list string) (int, error) {
	list = strings.TrimSpace(list)
	last := list[strings.LastIndexAny(list, "-,")+1:]
	n, err := strconv.ParseUint(last, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("list of CPUs %q: %w", list, err)
	}
	return int(n) + 1, nil
}

// Serve is the Go program's side of the protocol: it reads commands from in until quit or
// the end and answers on out. The process must be one that a tracer may probe: the command
// starts itself for it. Bytes is the size of a CPU's buffer of the tracepoint, a power of two.
func Serve(in io.Reader, out io.Writer, bytes uint64) error {
	b, err := newBuffers(bytes)
	if err != nil {
		return fmt.Errorf("workload: %w", err)
	}
	defer func() { _ = unix.Munmap(b.mem) }()
	defer b.stopGauge()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() && lines.Text() != "quit" {
		answer, err := b.command(lines.Text())
		if err != nil {
			return fmt.Errorf("workload: command %q: %w", lines.Text(), err)
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (b *buffers) command(line string) (any, error) {
	f := strings.Fields(line)
	if len(f) == 1 && f[0] == "written" {
		return Written{b.records()}, nil
	}
	if len(f) == 1 && f[0] == "gap" {
		return b.gap(), nil
	}
	if len(f) != 4 || f[0] != "run" {
		return nil, fmt.Errorf("not one of: run FUNC CALLS THREADS, written, gap, quit")
	}
	loop, calls, threads := loops[f[1]], uint64(0), 0
	calls, err := strconv.ParseUint(f[2], 10, 48)
	if err != nil {
		return nil, err
	}
	if threads, err = strconv.Atoi(f[3]); err != nil {
		return nil, err
	}
	if loop == nil || calls < batches || threads < 1 || threads > maxThreads {
		return nil, fmt.Errorf("need a known function, at least %d calls and 1 to %d threads", batches, maxThreads)
	}
	ns, err := b.run(loop, calls/batches, threads)
	if err != nil {
		return nil, err
	}
	slices.Sort(ns)
	return Result{f[1], threads, calls / batches * batches * uint64(threads), ns[0], ns[len(ns)/2]}, nil
}

// gap answers the largest gap since the command before, by a thread that the first one starts.
func (b *buffers) gap() Gap {
	if b.gauge == nil {
		b.gauge = StartGauge()
	}
	return Gap{b.gauge.Take().Nanoseconds()}
}

func (b *buffers) stopGauge() {
	if b.gauge != nil {
		b.gauge.Stop()
	}
}

// run calls loop(n) in batches on each of some threads and returns all batches' ns per call.
func (b *buffers) run(loop func(uint64, *state), n uint64, threads int) ([]float64, error) {
	ns := make([]float64, threads*batches)
	errs := make([]error, threads)
	var ready, done sync.WaitGroup
	ready.Add(threads)
	for t := range threads {
		done.Go(func() { errs[t] = b.thread(loop, n, t, &ready, ns[t*batches:][:batches]) })
	}
	done.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return ns, nil
}

// thread makes one thread's calls, bound to the t-th CPU that it may use, once all of them
// are ready.
func (b *buffers) thread(loop func(uint64, *state), n uint64, t int, ready *sync.WaitGroup, ns []float64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu, unbind, err := bindTo(t)
	if err != nil {
		ready.Done()
		return err
	}
	defer unbind()
	st, leave, err := b.enter(cpu)
	ready.Done()
	if err != nil {
		return err
	}
	defer leave()
	ready.Wait()
	for i := range ns {
		start := time.Now()
		loop(n, st)
		ns[i] = float64(time.Since(start).Nanoseconds()) / float64(n)
	}
	return nil
}

// bindTo binds the calling thread to the t-th of the CPUs that it may use.
func bindTo(t int) (bound int, unbind func(), err error) {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return 0, nil, fmt.Errorf("affinity of this thread: %w", err)
	}
	t %= may.Count()
	for cpu := range len(may) * 64 {
		if !may.IsSet(cpu) {
			continue
		}
		if t == 0 {
			bound = cpu
			break
		}
		t--
	}
	one.Set(bound)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return 0, nil, fmt.Errorf("affinity of this thread: %w", err)
	}
	return bound, func() { _ = unix.SchedSetaffinity(0, &may) }, nil
}
