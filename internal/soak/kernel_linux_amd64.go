package soak

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/target/process"
)

// kernel runs the program without probes of the engine's, with the kernel's uprobes at places, from
// its first instruction or (late) from the middle on. A place that the kernel refuses is
// missing in what it counted. layout is one of the ways in which memory may lie: counts that
// differ depend on addresses. beside is the definition of an event of the engine's that is armed before the
// first instruction, with all that this brings into the program; "": none.
func (s *Stage) kernel(places []place, late bool, layout int, beside string) (counts, *outcome, error) {
	st, err := s.streams()
	if err != nil {
		return nil, nil, err
	}
	defer st.close()
	proc, held, err := s.startAs(st, layout)
	if err != nil {
		return nil, nil, err
	}
	defer proc.Close()
	st.started()
	end := time.AfterFunc(patience, func() { _ = proc.Signal(9) })
	release := held.Release
	var core *kprobes.Core
	if beside != "" {
		core, release, err = withEvent(proc, held, beside)
	}
	var n counts
	if err == nil {
		n, err = s.uprobed(proc, release, st, places, late)
	}
	if err != nil {
		_ = proc.Signal(9)
	}
	ps, werr := proc.Wait()
	if core != nil {
		if cerr := core.Close(nil); cerr != nil && !isGone(cerr) {
			err = errors.Join(err, cerr)
		}
	}
	if !end.Stop() {
		err = errors.Join(err, fmt.Errorf("under uprobes the program does not end"))
	}
	if err = errors.Join(err, werr); err != nil {
		return nil, nil, err
	}
	o, err := st.collect(ps)
	return n, o, err
}

// layouts are limits of the stack: how far below it mappings begin follows from them
// (mmap_base, arch/x86/mm/mmap.c).
var layouts = []uint64{8 << 20, 300<<20 + 5<<12, 1<<30 + 23<<12, 3<<30 + 107<<12}

// starting is held while a limit of this process is not its own.
var starting sync.Mutex

func (s *Stage) startAs(st *streams, layout int) (*process.Proc, *process.Stopped, error) {
	starting.Lock()
	defer starting.Unlock()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &was); err != nil {
		return nil, nil, fmt.Errorf("limit of the stack: %w", err)
	}
	now := was
	now.Cur = min(layouts[layout%len(layouts)], was.Max)
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &now); err != nil {
		return nil, nil, fmt.Errorf("limit of the stack: %w", err)
	}
	proc, held, err := process.Start(s.startCommand(st))
	return proc, held, errors.Join(err, unix.Setrlimit(unix.RLIMIT_STACK, &was))
}

// withEvent arms an event in a program that has not run yet. run lets it run.
func withEvent(proc *process.Proc, held *process.Stopped, text string) (core *kprobes.Core, run func() error, err error) {
	d, err := event.Parse(text)
	if err != nil {
		return nil, nil, err
	}
	t, err := process.Attach(proc, &process.TargetOptions{Stopped: held})
	if err != nil {
		return nil, nil, err
	}
	if core, err = kprobes.Open(t, nil); err != nil {
		return nil, nil, err
	}
	_, err = core.Add([]*event.Def{d}, nil)
	return core, t.Run, err
}

func (s *Stage) uprobed(proc *process.Proc, release func() error, st *streams, places []place, late bool) (n counts, err error) {
	if _, err := kuprobe.Mount(); err != nil {
		return nil, err
	}
	u := &uprobes{}
	defer func() { err = errors.Join(err, u.close()) }()
	if !late {
		u.open(s, places)
	}
	if err := release(); err != nil {
		return nil, err
	}
	if err := st.waiting(proc.PID()); err != nil {
		return nil, err
	}
	if late {
		u.open(s, places)
	}
	if err := st.rest(); err != nil {
		return nil, err
	}
	<-proc.Exited()
	return u.read()
}

// uprobes are the kernel's probes: in batches, and each by itself where the kernel refuses one
// of a batch.
type uprobes struct {
	batches []batch
	single  map[place]*kuprobe.Probe
}

type batch struct {
	places []place
	b      *kuprobe.Batch
}

// batchSize is how many uprobes come and go together.
const batchSize = 12

func (u *uprobes) open(s *Stage, places []place) {
	u.single = map[place]*kuprobe.Probe{}
	places = slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !s.object(p.obj).kernelRuns(p.addr) })
	for ps := range slices.Chunk(places, batchSize) {
		at := make([]kuprobe.Place, len(ps))
		for i, p := range ps {
			o := s.object(p.obj)
			at[i] = kuprobe.Place{Path: o.Path, Offset: o.offset(p.addr)}
		}
		if b, err := kuprobe.OpenAll(at); err == nil {
			u.batches = append(u.batches, batch{ps, b})
			continue
		}
		for i, p := range ps {
			if k, err := at[i].Open(); err == nil {
				u.single[p] = k
			}
		}
	}
}

func (u *uprobes) read() (counts, error) {
	out := counts{}
	for _, b := range u.batches {
		ns, err := b.b.Counts()
		if err != nil {
			return nil, err
		}
		for i, n := range ns {
			out[b.places[i]] = n
		}
	}
	for p, k := range u.single {
		n, err := k.Count()
		if err != nil {
			return nil, err
		}
		out[p] = n
	}
	return out, nil
}

// close takes all out at once: for each one the kernel waits a while.
func (u *uprobes) close() error {
	var wg sync.WaitGroup
	for _, k := range u.single {
		wg.Go(func() { _ = k.Close() }) // closing descriptors does not fail
	}
	var errs []error
	for _, b := range u.batches {
		errs = append(errs, b.b.Close())
	}
	wg.Wait()
	return errors.Join(errs...)
}
