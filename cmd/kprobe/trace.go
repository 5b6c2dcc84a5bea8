package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/ring"
	"kprobes.dev/kprobes/target/process"
)

// traceFlags are the flags of kprobe trace.
type traceFlags struct {
	pid      int
	probes   []string
	deletes  []string
	file     string
	stat     bool
	counters bool
	duration time.Duration
	count    uint64
	out      string
	format   string
	quiet    bool
	verbose  bool
	buffer   int
	tactic   string
}

func newTrace() *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace (-p PID | -- CMD ARGS…) PROBE…",
		Short: "probe a process and print a line for each hit",
		Long: `Probe a running process, or a program that is started for it, and print a line for
each hit in the format of ftrace. PROBE is a kprobe_events definition:

  p[:[GRP/][EVENT]] [MOD:]SYM[+OFFS]|ADDR [FETCHARGS]      at an instruction
  r[MAXACTIVE][:[GRP/][EVENT]] [MOD:]SYM [FETCHARGS]       at a function's return

At the end a line for each event goes to stderr: hits, missed, lost, tactic.`,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := args, []string(nil)
			if n := c.ArgsLenAtDash(); n >= 0 {
				probes, cmd = args[:n], args[n:]
			}
			f.probes = append(f.probes, probes...)
			return f.run(cmd)
		},
	}
	fl := c.Flags()
	fl.IntVarP(&f.pid, "pid", "p", 0, "the process to probe")
	fl.StringArrayVarP(&f.probes, "event", "e", nil, "a probe (may be repeated)")
	fl.StringArrayVar(&f.deletes, "delete", nil, "a definition that deletes one given before it (-:[GRP/]EVENT)")
	fl.StringVar(&f.file, "probes", "", "read probes from a file, one a line")
	fl.BoolVar(&f.stat, "stat", false, "print no lines, only the summary")
	fl.BoolVar(&f.counters, "counters", false, "record nothing, only count the hits")
	fl.DurationVar(&f.duration, "duration", 0, "stop after this long")
	fl.Uint64Var(&f.count, "count", 0, "stop after this many lines")
	fl.StringVarP(&f.out, "output", "o", "", "write to a file instead of stdout")
	fl.StringVar(&f.format, "format", "text", "text or json")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no words but errors and the summary")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "tell what is done and what is left out")
	fl.StringVar(&f.tactic, "tactic", "", "take this tactic or none: jump, boost, step, uprobe (default: the best that is safe)")
	fl.IntVar(&f.buffer, "buffer-size", 0, "bytes of the ring for each CPU, a power of two (default 16 MiB on up to 4 CPUs, else 4 MiB)")
	return c
}

// definitions parses all probes: every bad one is reported, and then none is used.
func (f *traceFlags) definitions() ([]*event.Def, error) {
	var defs []*event.Def
	var errs []error
	if f.file != "" {
		r, err := os.Open(f.file)
		if err != nil {
			return nil, usageError{err}
		}
		defer r.Close()
		defs, errs = event.ParseFile(r)
	}
	for _, p := range append(f.probes, f.deletes...) {
		d, err := event.Parse(p)
		switch {
		case err != nil:
			errs = append(errs, err)
		case d != nil:
			defs = append(defs, d)
		}
	}
	if len(errs) > 0 {
		return nil, usageError{errors.Join(errs...)}
	}
	defs, err := withoutDeleted(defs)
	if err == nil && len(defs) == 0 {
		return nil, usagef("no probe is given: see kprobe trace --help")
	}
	return defs, err
}

// withoutDeleted applies the definitions that delete to those before them.
func withoutDeleted(defs []*event.Def) ([]*event.Def, error) {
	var out []*event.Def
	for _, d := range defs {
		if d.Kind != event.Delete {
			out = append(out, d)
			continue
		}
		kept := out[:0:0]
		for _, o := range out {
			if !d.Deletes(o) {
				kept = append(kept, o)
			}
		}
		if len(kept) == len(out) {
			return nil, usageError{errno.Errorf(unix.ENOENT, "%q matches no probe before it", d.Text)}
		}
		out = kept
	}
	return out, nil
}

func (f *traceFlags) check(cmd []string) error {
	switch {
	case f.pid == 0 && len(cmd) == 0:
		return usagef("give a process to probe: -p PID, or -- CMD ARGS")
	case f.pid != 0 && len(cmd) > 0:
		return usagef("-p and -- CMD exclude each other")
	case f.pid < 0:
		return usagef("process %d: a pid is positive", f.pid)
	case f.tactic != "" && f.tactic != "jump" && f.tactic != "boost" && f.tactic != "step" && f.tactic != "uprobe":
		return usagef("tactic %q: jump, boost, step or uprobe", f.tactic)
	case f.format != "text" && f.format != "json":
		return usagef("format %q: text or json", f.format)
	}
	return nil
}

// run is the verb.
func (f *traceFlags) run(cmd []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	defs, err := f.definitions()
	if err != nil {
		return err
	}
	s, err := f.open(cmd)
	if err != nil {
		return err
	}
	defer s.proc.Close()
	t := &tracing{f: f, s: s, stop: make(chan os.Signal, 1)}
	return t.run(defs, len(cmd) > 0)
}

// open makes the session: a process that runs, or one that is started and held.
func (f *traceFlags) open(cmd []string) (*session, error) {
	cfg := ring.Config{DataSize: f.buffer, Events: ring.MaxEvents}
	if cfg.DataSize == 0 {
		cfg.DataSize = defaultRing()
	}
	if len(cmd) == 0 {
		return attach(f.pid, cfg)
	}
	p, st, err := process.Start(&process.Command{Path: cmd[0], Args: cmd[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return nil, err
	}
	return newSession(p, &process.TargetOptions{Ring: cfg, Stopped: st})
}

// defaultRing is the data of a shard: what a burst of some ten milliseconds fills.
func defaultRing() int {
	if runtime.NumCPU() <= 4 {
		return 16 << 20
	}
	return 4 << 20
}

// tracing is one run of the verb.
type tracing struct {
	f       *traceFlags
	s       *session
	stop    chan os.Signal
	queue   *queue
	printed *lines
	evs     []*kprobes.Event
}

func (t *tracing) run(defs []*event.Def, child bool) (err error) {
	w, err := t.output()
	if err != nil {
		return err
	}
	t.printed = newLines(t.f, w, t.s.names)
	t.queue = newQueue(t.printed.hit, t.printed.flush)
	defer func() { err = errors.Join(err, t.queue.close(), t.printed.finish(), w.Close()) }()
	o := &kprobes.AddOptions{Count: t.f.counters, Skip: t.skipped, Late: true, Tactic: arch.Tactic(t.f.tactic)}
	if child {
		signal.Ignore(unix.SIGINT) // the child's to handle: it is in our terminal's group
		signal.Notify(t.stop, unix.SIGTERM)
	} else {
		signal.Notify(t.stop, unix.SIGINT, unix.SIGTERM)
	}
	if t.evs, err = t.s.core.Add(defs, o); err != nil {
		return errors.Join(err, t.s.core.Close(nil))
	}
	t.slower()
	if err := t.s.target.Run(); err != nil {
		return err
	}
	t.loop()
	err = errors.Join(t.s.core.Close(t.queue.add), t.queue.close(), t.printed.finish())
	t.summary()
	if child && err == nil {
		return t.status()
	}
	return err
}

func (t *tracing) skipped(name string, why error) {
	if t.f.verbose {
		fmt.Fprintf(os.Stderr, "kprobe: %s is left out: %v\n", name, why)
	}
}

// slower tells of the events that have not the fastest tactic, and why.
func (t *tracing) slower() {
	for _, e := range t.evs {
		if t.f.verbose && e.Why != nil {
			fmt.Fprintf(os.Stderr, "kprobe: %s has tactic=%s: %v\n", e.Name, e.Tactic, e.Why)
		}
	}
}

// nopCloser leaves stdout open.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (t *tracing) output() (io.WriteCloser, error) {
	var w io.WriteCloser = nopCloser{os.Stdout}
	if t.f.out != "" {
		file, err := os.Create(t.f.out)
		if err != nil {
			return nil, err
		}
		w = file
	}
	return w, nil
}

// loop reads until the process ends, somebody stops it, or enough was read.
func (t *tracing) loop() {
	var end <-chan time.Time
	if t.f.duration > 0 {
		end = time.After(t.f.duration)
	}
	idle := time.NewTimer(0)
	pause := pollMin
	looked := time.Now()
	for {
		if time.Since(looked) > syncEvery || t.s.core.Pending() {
			looked = time.Now()
			if t.sync() {
				return
			}
		}
		if t.s.core.Poll(t.queue.add) > 0 {
			pause = pollMin
		} else {
			t.queue.flush()
			pause = min(2*pause, pollMax)
		}
		idle.Reset(pause)
		select {
		case <-t.stop:
			return
		case <-end:
			return
		case <-t.s.proc.Exited():
			return
		case <-t.printed.full:
			return
		case <-idle.C:
		}
	}
}

// sync follows what the process maps. It says whether the process is not the program any
// more that was probed.
func (t *tracing) sync() (end bool) {
	err := t.s.core.Sync()
	switch {
	case err == nil:
	case errors.Is(err, process.ErrNoProcess):
		return true
	case errors.Is(err, process.ErrExec):
		fmt.Fprintf(os.Stderr, "kprobe: process %d executes another program: its probes are gone\n", t.s.proc.PID())
		return true
	case !t.f.quiet:
		fmt.Fprintf(os.Stderr, "kprobe: %v\n", err)
	}
	t.s.names.forget()
	return false
}

// syncEvery is the time between two looks at what the process has mapped.
const syncEvery = 20 * time.Millisecond

// The pause between two looks at the ring grows from pollMin while nothing comes.
const (
	pollMin = 100 * time.Microsecond
	pollMax = 2 * time.Millisecond
)

// status waits for the child and makes its status ours: 128+N if a signal killed it.
func (t *tracing) status() error {
	st, err := t.s.proc.Wait()
	if err != nil {
		return err
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return statusError(128 + int(ws.Signal()))
	}
	if code := st.ExitCode(); code != 0 {
		return statusError(code)
	}
	return nil
}
