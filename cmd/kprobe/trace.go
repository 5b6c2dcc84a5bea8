package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/target/process"
)

// traceFlags are the flags of kprobe trace.
type traceFlags struct {
	of       subject
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
	stubs    bool
	given    func(flag string) bool
	text     string
}

// traceHelp says what a probe may be.
const traceHelp = `Probe a running process, or a program that is started for it, and print a line for
each hit in the format of ftrace; with -k the kernel that runs here, by its own kprobes,
with --guest the kernel of a QEMU guest, from outside.
PROBE is a kprobe_events definition:

  p[:[GRP/]EVENT] PLACE [FETCHARGS]               at an instruction
  r[MAXACTIVE][:[GRP/]EVENT] PLACE [FETCHARGS]    at a function's return

PLACE is one of
  SYM, SYM+OFFS, MOD:SYM[+OFFS]       a function, an instruction in it; of the object or module MOD
  PATTERN, MOD:PATTERN                with * ? or [...]: one event for each function that matches
  0xADDR, MOD:0xADDR, PATH:0xOFFSET   an address as nm prints it, an offset in a file
  'SYM' or "SYM"                      a name with spaces or other unusual characters
  PLACE%return                        with p: the function's return

A FETCHARG is [NAME=]ARG[:TYPE]. ARG is one of
  %REG                      a register: %di, %ax, %r8
  $argN, $retval            the Nth integer argument, from 1; the return value (with r)
  $stack, $stackN           the stack pointer; the Nth word of the stack, from 0
  $comm                     the thread's name
  @ADDR, @SYM[+OFFS]        memory at a fixed place
  +OFFS(ARG), -OFFS(ARG)    memory that ARG points to, OFFS bytes further
  \IMM, \"TEXT"             a constant

TYPE is one of
  u8 u16 u32 u64, s8 ... s64, x8 ... x64    unsigned, signed, hexadecimal (x64 if none is given)
  char, string, ustring, gostring           a character; strings: up to a NUL, the same, Go's
  symbol, symstr                            an address, shown as SYM+0xOFF/0xSIZE
  b<width>@<offset>/<size>                  bits of a container of 8, 16, 32 or 64
  TYPE[N]                                   an array in memory, N up to 64

At the end a line for each event goes to stderr: hits, missed, lost, tactic.
Exit status: 0 done, 1 failed, 2 wrong usage; with -- CMD that of the program.`

func newTrace() *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace (-p PID | -k | --guest SPEC | -- CMD ARGS…) PROBE…",
		Short: "probe a process or a kernel and print a line for each hit",
		Long:  traceHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := args, []string(nil)
			if n := c.ArgsLenAtDash(); n >= 0 {
				probes, cmd = args[:n], args[n:]
			}
			f.probes = append(f.probes, probes...)
			return f.run(cmd)
		},
	}
	f.flags(c)
	return c
}

// flags are the verb's.
func (f *traceFlags) flags(c *cobra.Command) {
	fl := c.Flags()
	f.of.flags(c)
	f.given = fl.Changed
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
	fl.StringVar(&f.tactic, "tactic", "", "take this tactic or none: jump, boost, step, uprobe, in a guest jump or break (default: the best that is safe)")
	fl.BoolVar(&f.stubs, "trampoline", false, "see returns by trampoline where that is possible, also of functions whose exits are all known")
	fl.StringVar(&f.text, "text", "", "pages of the program that probes stand in: private (copies that kernel uprobes do not reach) or shared")
	fl.IntVar(&f.buffer, "buffer-size", 0, "bytes of the ring for each CPU, a power of two (default 64 MiB for all that it runs on, at most 16 MiB each, less where memory is short)")
}

// definitions parses all probes: every bad one is reported, and then none is used.
func (f *traceFlags) definitions() ([]*event.Def, error) {
	parser := event.Parser{Kernel: f.of.kernel}
	var defs []*event.Def
	var errs []error
	if f.file != "" {
		r, err := os.Open(f.file)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		defs, errs = parser.ParseFile(r)
	}
	for _, p := range append(f.probes, f.deletes...) {
		d, err := parser.Parse(p)
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
	switch one, err := f.of.named(); {
	case err != nil:
		return err
	case f.of.kernel && f.tactic != "":
		return usagef("--tactic is for processes and guests: the kernel chooses itself")
	case f.of.guest != "" && f.buffer != 0:
		return usagef("--buffer-size is not for guests: the ring lies in the device that guest start --ring gives QEMU")
	case !one && len(cmd) == 0:
		return usagef("give what to probe: -p PID, -k, --guest SPEC, or -- CMD ARGS")
	case one && len(cmd) > 0:
		return usagef("-p, -k, --guest and -- CMD exclude each other")
	case f.tactic != "" && !slices.Contains(tactics, f.tactic):
		return usagef("tactic %q: %s", f.tactic, strings.Join(tactics, ", "))
	case f.text != "" && f.text != "private" && f.text != "shared":
		return usagef("text %q: private or shared", f.text)
	case f.text != "" && (f.of.kernel || f.of.guest != ""):
		return usagef("--text is for processes")
	case f.format != "text" && f.format != "json":
		return usagef("format %q: text or json", f.format)
	case f.duration < 0:
		return usagef("--duration %v: a time can not be negative; without the flag the trace goes on until it is ended", f.duration)
	case f.given("buffer-size") && !f.ringSize():
		return usagef("--buffer-size %d: a power of two from %d to %d is wanted", f.buffer, ring.MinData, ring.MaxData)
	}
	return nil
}

// ringSize says whether the size that is asked for can be had. The kernel takes any.
func (f *traceFlags) ringSize() bool {
	return f.buffer > 0 && (f.of.kernel || f.buffer >= ring.MinData && f.buffer <= ring.MaxData && f.buffer&(f.buffer-1) == 0)
}

// textModes are the words of --text.
var textModes = map[string]process.TextMode{"private": process.TextPrivate, "shared": process.TextShared}

// tactics are those that --tactic takes.
var tactics = []string{"jump", "boost", "step", "uprobe", "break"}

// run is the verb.
func (f *traceFlags) run(cmd []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	defs, err := f.definitions()
	if err != nil {
		return err
	}
	t := &tracing{f: f}
	if t.printed, err = newLines(f); err != nil {
		return err
	}
	t.queue = newQueue(t.printed.hit, t.printed.flush)
	t.end = catchEnd(t.queue.takeAll)
	return errors.Join(t.run(defs, cmd), t.close())
}

// open makes what is traced. Each kind of target has its own flags.
func (f *traceFlags) open(cmd []string) (tracee, error) {
	switch {
	case f.of.kernel:
		return openKernel(f.buffer, f.counters)
	case f.of.guest != "":
		return openGuest(f.of.guest)
	}
	return openProcess(f.of.pid, cmd, f.buffer, f.counters, textModes[f.text])
}

// tracing is one run of the verb.
type tracing struct {
	f       *traceFlags
	s       tracee
	end     *ending
	queue   *queue
	printed *lines
}

// run traces, and ends with nothing of the tracer's in the target.
func (t *tracing) run(defs []*event.Def, cmd []string) (err error) {
	if t.s, err = t.f.open(cmd); err != nil {
		return err
	}
	if len(cmd) > 0 {
		t.end.leaveKeys()
	}
	t.printed.print.Names = t.s.Names()
	o := &kprobes.AddOptions{Count: t.f.counters, Skip: t.skipped, Late: true, Found: true, Tactic: arch.Tactic(t.f.tactic), Trampoline: t.f.stubs}
	if err = t.s.Add(defs, o); err != nil {
		return errors.Join(err, t.s.Leave(nil), t.s.Close())
	}
	if !t.f.quiet {
		t.s.Waiting(waiting)
	}
	if t.f.verbose {
		t.s.Slower(slower)
		t.s.Stubs(stubs)
	}
	if err = t.s.Run(); err != nil {
		return errors.Join(err, t.s.Close())
	}
	t.loop()
	err = t.s.Leave(t.queue.add)
	t.end.release()
	err = errors.Join(err, t.close())
	t.summary()
	return errors.Join(err, t.s.Status(), t.s.Close())
}

// close prints what is left and ends the output; the first time it tells what went wrong with it.
func (t *tracing) close() error {
	if t.queue == nil {
		return nil
	}
	t.queue.close()
	t.queue = nil
	return t.printed.finish()
}

func (t *tracing) skipped(name string, why error) {
	if t.f.verbose {
		fmt.Fprintf(os.Stderr, "kprobe: %s is left out: %v\n", name, why)
	}
}

// waiting tells of an event whose object is not there: it may also be mistyped.
func waiting(name string, why error) {
	fmt.Fprintf(os.Stderr, "kprobe: %s waits for its object: %v\n", name, why)
}

// slower tells of an event that has not the fastest tactic, and why.
func slower(name, tactic string, why error) {
	fmt.Fprintf(os.Stderr, "kprobe: %s has tactic=%s: %v\n", name, tactic, why)
}

// stubs tells of a return probe that does not stand at its function's exits, and why.
func stubs(name string, why error) {
	fmt.Fprintf(os.Stderr, "kprobe: %s has returns=%s: %v\n", name, kprobes.ReturnsTrampoline, why)
}

// loop reads until the target ends, somebody stops it, or enough was read. A goroutine of its own reads:
// a change of probes can take long, and the ring would overflow meanwhile.
func (t *tracing) loop() {
	stop, ended, pending := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(ended)
		t.read(stop, pending)
	}()
	t.follow(pending)
	t.queue.takeAll() // else the reader may wait for the printer
	close(stop)
	<-ended
}

// read hands the hits to the printer until it is told to stop, and tells when Sync should be called now.
func (t *tracing) read(stop <-chan struct{}, pending chan<- struct{}) {
	idle := time.NewTimer(0)
	defer idle.Stop()
	pause := pollMin
	for {
		if t.s.Poll(t.queue.add) > 0 {
			pause = pollMin
		} else {
			t.queue.flush()
			pause = min(2*pause, pollMax)
		}
		if t.s.Pending() {
			select {
			case pending <- struct{}{}:
			default:
			}
		}
		idle.Reset(pause)
		select {
		case <-stop:
			return
		case <-idle.C:
		}
	}
}

// follow follows what changes in the target until the trace is to end.
func (t *tracing) follow(pending <-chan struct{}) {
	var end <-chan time.Time
	if t.f.duration > 0 {
		end = time.After(t.f.duration)
	}
	look := time.NewTimer(syncEvery)
	defer look.Stop()
	for {
		select {
		case <-t.end.asked:
			return
		case <-end:
			return
		case <-t.s.Exited():
			return
		case <-t.printed.full:
			return
		case <-pending:
		case <-look.C:
		}
		if t.sync() || t.printed.noReader() {
			return
		}
		look.Reset(syncEvery)
	}
}

// sync follows what changes in the target, and says whether it has ended.
func (t *tracing) sync() (ended bool) {
	ended, err := t.s.Sync()
	if err != nil && (ended || !t.f.quiet) {
		fmt.Fprintf(os.Stderr, "kprobe: %v\n", err)
	}
	return ended
}

// syncEvery is the time between two looks at what has changed in the target.
const syncEvery = 20 * time.Millisecond

// The pause between two looks at the ring grows from pollMin while nothing comes.
const (
	pollMin = 100 * time.Microsecond
	pollMax = 2 * time.Millisecond
)
