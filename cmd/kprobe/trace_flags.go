package main

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/target/process"
)

// traceHelp says what a probe may be.
const traceHelp = `Probe a running process, or a program that is started for it, and print a line for
each hit in the format of ftrace; with -x every process of an executable, those that run
and those that come; with -k the kernel that runs here, by its own kprobes, with --guest
the kernel of a QEMU guest, from outside.
PROBE is a kprobe_events definition:

  p[:[GRP/]EVENT] PLACE [FETCHARGS]               at an instruction
  r[MAXACTIVE][:[GRP/]EVENT] PLACE [FETCHARGS]    at a function's return
  f[MAXACTIVE][:[GRP/]EVENT] FUNC[%return] [FETCHARGS]
                                                  at functions: those of a pattern are one event
  w[:[GRP/]EVENT] [w|rw|x]@WATCHED [FETCHARGS]    at accesses to memory of a process: writes, all, execution

PLACE is one of
  SYM, SYM+OFFS, MOD:SYM[+OFFS]       a function, an instruction in it; of the object or module MOD
  PATTERN, MOD:PATTERN                with * ? or [...]: one event for each function that matches
  0xADDR, MOD:0xADDR, PATH:0xOFFSET   an address as nm prints it, an offset in a file
  'SYM' or "SYM"                      a name with spaces or other unusual characters
  PLACE%return                        with p: the function's return

WATCHED is SYM[+-OFFS][:LEN] or 0xADDR[:LEN], with MOD: or without; LEN is 1, 2, 4 or 8.

A FETCHARG is [NAME=]ARG[:TYPE]. ARG is one of
  %REG                      a register: %di, %ax, %r8
  $argN, $retval            the Nth integer argument, from 1; the return value (with r)
  NAME, NAME->MEMBER        by debug information, or a guest's types: a parameter or a variable; also NAME.MEMBER, NAME[N]
  NAME.(TYPE)               behind an interface of Go, if its value has this type: w.(*net/http.response).status
  $arg*, $vars              likewise: all parameters; all variables at the place
  $duration                 the nanoseconds from the function's call to its return (with r)
  $stack, $stackN           the stack pointer; the Nth word of the stack, from 0
  $comm                     the thread's name
  $addr                     the address that is watched (with w)
  @ADDR, @SYM[+OFFS]        memory at a fixed place
  +OFFS(ARG), -OFFS(ARG)    memory that ARG points to, OFFS bytes further
  \IMM, \"TEXT"             a constant

TYPE is one of
  u8 u16 u32 u64, s8 ... s64, x8 ... x64    unsigned, signed, hexadecimal (x64 if none is given)
  char, string, ustring, gostring           a character; strings: up to a NUL, the same, Go's
  symbol, symstr                            an address, shown as SYM+0xOFF/0xSIZE
  b<width>@<offset>/<size>                  bits of a container of 8, 16, 32 or 64
  TYPE[N]                                   an array in memory, N up to 64

Behind a probe, -f gives it a FILTER, and each -R a TRIGGER, in the language of the kernel's
trigger files. A TRIGGER is COMMAND[:COUNT] [if FILTER]; COMMAND is one of
  traceoff, traceon              nothing is shown from the next hit on; all is shown again
  stacktrace                     the callers are shown
  enable_event:GRP:EVENT         hits of another probe are shown, which were not before;
  disable_event:GRP:EVENT        they are not shown any more
  hist:keys=…                    hits are counted by keys, as kprobe hist does
  enable_hist:GRP:EVENT, disable_hist:GRP:EVENT    histograms of a probe count, or pause

At the end a line for each event goes to stderr: hits, missed, lost, tactic.
Exit status: 0 done, 1 failed, 2 wrong usage; with -- CMD that of the program.`

// flags are the verb's.
func (f *traceFlags) flags(c *cobra.Command) {
	f.shared(c, "lines")
	f.every.flags(c)
	fl := c.Flags()
	events := &probeValue{f: f, fl: fl}
	fl.VarP(events, "event", "e", "a probe (may be repeated)")
	fl.VarP(&boundValue{events, "FILTER", &f.filters}, "filter", "f", "what a hit of the probe before must pass to be shown: 'n > 5 && path ~ \"/etc/*\"'")
	fl.VarP(&boundValue{events, "TRIGGER", &f.triggers}, "trigger", "R", "what the probe before does at its hits: 'traceoff:1 if n > 5' (may be repeated)")
	fl.StringArrayVar(&f.deletes, "delete", nil, "a definition that deletes one given before it (-:[GRP/]EVENT)")
	fl.StringVar(&f.file, "probes", "", "read probes from a file, one a line")
	fl.BoolVar(&f.stat, "stat", false, "print no lines, only the summary")
	fl.BoolVar(&f.counters, "counters", false, "record nothing, only count the hits")
	fl.StringVar(&f.format, "format", "text", "text or json")
	f.stacks(c)
}

// stacks is the flag of the verbs that record callers.
func (f *traceFlags) stacks(c *cobra.Command) {
	fl := c.Flags()
	fl.IntVar(&f.stack, "stacktrace", 0, "record who has called, with each hit: so many callers at most")
	fl.Lookup("stacktrace").NoOptDefVal = strconv.Itoa(defaultCallers)
}

// shared are the flags of the verbs that probe; what ends after a number of them is called so.
func (f *traceFlags) shared(c *cobra.Command, counted string) {
	fl := c.Flags()
	f.of.flags(c)
	f.only.flags(fl)
	f.given = fl.Changed
	fl.DurationVar(&f.duration, "duration", 0, "stop after this long")
	fl.Uint64Var(&f.count, "count", 0, "stop after this many "+counted)
	fl.StringVarP(&f.out, "output", "o", "", "write to a file instead of stdout")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no words but errors and the summary")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "tell what is done and what is left out")
	fl.StringVar(&f.tactic, "tactic", "", "take this tactic or none: jump, boost, step, uprobe, in a guest jump or break (default: the best that is safe)")
	fl.BoolVar(&f.stubs, "trampoline", false, "see returns by trampoline where that is possible, also of functions whose exits are all known")
	fl.BoolVar(&f.inlines, "inlines", false, "look for calls that were inlined in debug information of any size, and for patterns")
	fl.BoolVar(&f.noInlines, "no-inlines", false, "probe no calls that were inlined")
	fl.StringVar(&f.text, "text", "", "pages of the program that probes stand in: private (copies that kernel uprobes do not reach) or shared")
	fl.BoolVar(&f.alone, "alone", false, "hold the target in this command: nobody else can use it meanwhile, and when the command is killed the probes stay")
	fl.Var(&budgetValue{&f.budget}, "budget", "disable each event that has more hits a second, or takes more time: 10k/s, 5ms/s (may be repeated)")
	fl.IntVar(&f.buffer, "buffer-size", 0, "bytes of the ring for each CPU, a power of two (default 64 MiB for all that it runs on, at most 16 MiB each, less where memory is short)")
}

// defaultCallers is how many callers a stack has, if no number is given.
const defaultCallers = 32

// inlining says how calls are looked for that were inlined.
func (f *traceFlags) inlining() kprobes.Inlines {
	switch {
	case f.noInlines:
		return kprobes.InlinesNone
	case f.inlines:
		return kprobes.InlinesAll
	}
	return kprobes.InlinesAuto
}

// definitions parses all probes: every bad one is reported, and then none is used.
func (f *traceFlags) definitions() ([]*event.Def, error) {
	parser := event.Parser{Kernel: f.of.kernel}
	var defs []*event.Def
	var errs []error
	if f.file != "" {
		r, err := os.Open(f.con.path(f.file))
		if err != nil {
			return nil, f.con.pathError(err, f.file)
		}
		defer r.Close()
		defs, errs = parser.ParseFile(r)
	}
	var given []*event.Def
	for _, p := range slices.Concat(f.probes, f.others, f.deletes) {
		d, err := parser.Parse(p)
		if err != nil {
			errs = append(errs, err)
		}
		given = append(given, d)
	}
	if len(errs) > 0 {
		return nil, usageError{errors.Join(errs...)}
	}
	f.listed = slices.Clone(given)
	if err := errors.Join(f.filter(given, len(f.probes)), f.parseTriggers(given, len(f.probes))); err != nil {
		return nil, err
	}
	defs = append(defs, slices.DeleteFunc(given, func(d *event.Def) bool { return d == nil })...)
	for _, d := range defs {
		d.Stack, d.Filter = f.stack, f.only.and(d.Filter)
		f.patterns = f.patterns || d.Place.Glob
	}
	f.triggerStacks(defs)
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
	if err := f.only.check(); err != nil {
		return err
	}
	one, err := f.of.named()
	if err == nil {
		err = f.every.check(f, one)
	}
	subject := one
	switch one = one || f.every.named(); {
	case err != nil:
		return err
	case f.counters && f.only.given():
		return usagef("--tid and --comm need records: leave out --counters")
	case f.of.kernel && f.counters && len(f.filters) > 0:
		return usagef("-f with -k needs records: the kernel counts hits before it filters them; leave out --counters")
	case f.counters && len(f.triggers) > 0:
		return usagef("-R needs records: leave out --counters")
	case f.given("stacktrace") && (f.stack < 1 || f.stack > event.MaxStack):
		return usagef("--stacktrace=%d: a number of callers from 1 to %d is wanted", f.stack, event.MaxStack)
	case f.counters && f.stack > 0:
		return usagef("--stacktrace needs records: leave out --counters")
	case f.of.kernel && f.tactic != "":
		return usagef("--tactic is for processes and guests: the kernel chooses itself")
	case f.of.kernel && f.budget != kprobes.Budget{}:
		return usagef("--budget is for processes and guests: the kernel goes on with its own probes whatever they cost")
	case f.of.guest != "" && f.budget.Nanos != 0:
		return usagef("--budget %v/s: what a hit costs in a guest is not known: give hits a second, such as 10k/s", time.Duration(f.budget.Nanos))
	case f.of.guest != "" && f.buffer != 0:
		return usagef("--buffer-size is not for guests: the ring lies in the device that guest start --ring gives QEMU")
	case !one && len(cmd) == 0:
		return usagef("give what to probe: -p PID, -x FILE, -k, --guest SPEC, or -- CMD ARGS")
	case subject && len(cmd) > 0:
		return usagef("-p, -k, --guest and -- CMD exclude each other")
	case f.tactic != "" && !slices.Contains(tactics, f.tactic):
		return usagef("tactic %q: %s", f.tactic, strings.Join(tactics, ", "))
	case f.text != "" && f.text != "private" && f.text != "shared":
		return usagef("text %q: private or shared", f.text)
	case f.text != "" && (f.of.kernel || f.of.guest != ""):
		return usagef("--text is for processes")
	case f.format != "text" && f.format != "json":
		return usagef("format %q: text or json; docs/exports.md has what other verbs write for other tools", f.format)
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
