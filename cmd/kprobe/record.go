package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/perfetto"
	"kprobes.dev/kprobes/internal/tracedat"
)

const recordHelp = `Record the hits of probes in a running process, in a program that is started for it, in every
process of an executable, or in the kernel of a QEMU guest, and write them to a file: trace.dat, of version 6, which kprobe report
and trace-cmd report print on any machine, or with --format perfetto a trace for Perfetto.
PROBE is a definition as kprobe trace takes it, with -f FILTER behind it. The file is complete
when the trace ends. At the end a line for each event goes to stderr.`

// recording is a run of the verb record.
type recording struct {
	f       traceFlags
	t       *tracing
	to      hitFile
	dat     *tracedat.Recorder // of to; nil: it is none
	format  string
	n       uint64
	damaged uint64
	err     error
}

func newRecord(con *console) *cobra.Command {
	var g recording
	f := &g.f
	f.con = con
	c := &cobra.Command{
		Use:   "record (-p PID | -x FILE | --guest SPEC | -- CMD ARGS…) PROBE…",
		Short: "record the hits of probes to a trace.dat file",
		Long:  recordHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := atDash(c, args)
			f.others = probes
			return g.run(cmd)
		},
	}
	f.shared(c, "hits")
	f.stacks(c)
	f.every.flags(c)
	fl := c.Flags()
	events := &probeValue{f: f, fl: fl}
	fl.VarP(events, "event", "e", "a probe (may be repeated)")
	fl.VarP(&boundValue{events, "FILTER", &f.filters}, "filter", "f", "what a hit of the probe before must pass to be recorded: 'n > 5'")
	fl.StringVar(&f.file, "probes", "", "read probes from a file, one a line")
	fl.Lookup("output").Usage = "the file"
	fl.Lookup("output").DefValue = defaultFile
	fl.StringVar(&g.format, "format", formDat, "the file is a trace.dat (dat), or a trace for Perfetto (perfetto)")
	f.out, f.format = defaultFile, "text"
	return c
}

// The forms of a file of hits.
const (
	formDat      = "dat"
	formPerfetto = "perfetto"
)

// hitFile is a file that hits are written to.
type hitFile interface {
	Hit(h *hit.Hit) error
	Lost(cpu int, hits uint64)
	Close() error
}

// datFile is a trace.dat file.
type datFile struct{ *tracedat.Recorder }

func (d datFile) Close() error { return d.Recorder.Close(runtime.NumCPU()) }

// defaultFile is the file that record writes and report reads, where none is named.
const defaultFile = "trace.dat"

// run is the verb.
func (g *recording) run(cmd []string) error {
	f := &g.f
	if err := f.check(cmd); err != nil {
		return err
	}
	switch {
	case f.of.kernel:
		return usagef("-k: the kernel's own records are trace-cmd's: trace-cmd record -e kprobes")
	case g.format != formDat && g.format != formPerfetto:
		return usagef("format %q: %s or %s", g.format, formDat, formPerfetto)
	case f.every.named() && g.format == formPerfetto:
		return usagef("--format %s is for one process: record -x FILE to a trace.dat, and convert that: kprobe report --format %s", formPerfetto, formPerfetto)
	case f.out == "":
		return usagef("-o: give the name of a file")
	}
	if g.format == formPerfetto && !f.given("output") {
		f.out = defaultPerfetto
	}
	defs, err := f.definitions()
	if err != nil {
		return err
	}
	if ok, err := f.elsewhere(defs, cmd); ok || err != nil {
		return err
	}
	t := &tracing{f: f, added: g.prepare}
	g.t = t
	if t.printed, err = newLines(lineOptions{con: f.con, format: f.format, stat: true, count: f.count}); err != nil {
		return err
	}
	t.hits = newHitQueue(g.hit, g.lost, func() {})
	if f.every.named() {
		t.eachLeft = func(m *executableMember) { g.dat.Forget(m.p.s.names) }
	}
	t.end = f.con.catchEnd(t.hits.takeAll)
	err = errors.Join(t.run(defs, cmd), t.close(), g.err)
	if g.to != nil {
		err = errors.Join(err, g.to.Close())
	}
	if p, ok := g.to.(*perfetto.Recorder); ok && !f.quiet {
		tellUnreturned(f.con.stderr, p.Trace)
	}
	if g.damaged > 0 {
		fmt.Fprintf(f.con.stderr, "kprobe: %d records were damaged and are left out\n", g.damaged)
	}
	return err
}

// prepare makes the file.
func (g *recording) prepare(s tracee) error {
	if g.format == formPerfetto {
		return g.preparePerfetto(s)
	}
	to, err := tracedat.Create(g.f.con.path(g.f.out), s.Names(), system(), "kprobe "+version())
	if err != nil {
		return g.f.con.pathError(err, g.f.out)
	}
	if g.f.stack > 0 {
		to.Stacks()
	}
	g.to, g.dat = datFile{to}, to
	return nil
}

// hit records a hit.
func (g *recording) hit(h *hit.Hit) {
	if g.err != nil || g.f.count > 0 && g.n >= g.f.count {
		return
	}
	switch err := g.write(h); {
	case errors.Is(err, fetch.ErrRecord):
		g.damaged++
	case err != nil:
		g.err = writeError(g.f.out, err)
		g.t.printed.end()
	}
	if g.n++; g.n == g.f.count {
		g.t.printed.end()
	}
}

// write writes a hit to the file, with the names of its process.
func (g *recording) write(h *hit.Hit) error {
	if m, ok := hit.From(h).(*executableMember); ok {
		return g.dat.HitOf(m.p.s.names, h)
	}
	return g.to.Hit(h)
}

// lost records that hits of a CPU were lost.
func (g *recording) lost(l hit.Loss) {
	if g.f.count == 0 || g.n < g.f.count {
		g.to.Lost(l.CPU, l.Hits)
	}
}

// system names this machine, as uname -a does.
func system() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return runtime.GOOS
	}
	var all []string
	for _, b := range [][]byte{u.Sysname[:], u.Nodename[:], u.Release[:], u.Version[:], u.Machine[:]} {
		all = append(all, unix.ByteSliceToString(b))
	}
	return strings.Join(all, " ")
}

// defaultPerfetto is the file that record --format perfetto writes, where none is named.
const defaultPerfetto = "trace.perfetto-trace"

// tellUnreturned tells of calls that end in a trace where a call around them does.
func tellUnreturned(w io.Writer, t *perfetto.Trace) {
	if t.Unreturned > 0 {
		fmt.Fprintf(w, "kprobe: %d calls have no return in the trace: their slices end where that of a call around them does\n", t.Unreturned)
	}
}
