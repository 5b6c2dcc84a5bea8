package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/internal/spans"
	"kprobes.dev/kprobes/internal/spanset"
)

const spansHelp = `Make spans of the calls of functions, in a running process, in a program that is started for
it, in every process of an executable, or in the kernel of a QEMU guest: each has the time from the call to its return, the
arguments and results as attributes, the status error where the call has failed, and the call
that it is in as its parent. They go to a collector by OTLP, to a file, or as text to stdout.

A PROBE is FUNC [FETCHARGS], or a definition of a return probe, r[:EVENT] FUNC [FETCHARGS], as
kprobe trace takes it: 'main.(*Shop).Order user n=len ok=$retval'. FUNC may be a pattern.
Behind a probe, --if gives it a FILTER of arguments: other calls are no spans. --error gives
it a FILTER that says which calls have failed: 'r:q run_query ret=$retval:s32' --error 'ret < 0'.
In Go a call has failed if its last result is an error that is not nil. The name of an argument
may have dots, as attributes of OpenTelemetry have: 'main.query db.query.text=sql' --kind client.
With traceparent=ctx, of a context.Context of Go, a call is in the span that the program itself
has put there by OpenTelemetry.

--set has the functions of ready sets too, or of a file of yours; --print-set prints one.

--slower and --errors are tested at the return in the target: calls that do not pass cost no
record. At the end a line for each probe, and one for the spans, go to stderr.`

// spanning is a run of the verb spans.
type spanning struct {
	f       traceFlags
	t       *tracing
	address string
	headers []string
	o       spanmaker.Options // what the flags say of it
	service string
	failing []boundFlag // --error
	kinds   []boundFlag // --kind
	print   string      // --print-set

	to    otlp.Sender // of --otlp
	calls []*spanmaker.Call
	maker *spanmaker.Maker // of one target
	out   spanOutput
	all   *spansOfAll // with -x
}

func newSpans(con *console) *cobra.Command {
	var g spanning
	f := &g.f
	f.con = con
	c := &cobra.Command{
		Use:   "spans (-p PID | -x FILE | --guest SPEC | -- CMD ARGS…) PROBE…\n  kprobe spans --print-set NAME",
		Short: "make spans of calls, for a collector of OpenTelemetry",
		Long:  spansHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := atDash(c, args)
			return g.run(probes, cmd)
		},
	}
	f.shared(c, "spans")
	f.every.flags(c)
	f.format = "text"
	fl := c.Flags()
	events := &probeValue{f: f, fl: fl}
	fl.VarP(events, "event", "e", "a probe (may be repeated)")
	fl.VarP(&boundValue{events, "FILTER", &f.filters}, "if", "f", "which calls of the probe before become spans, by their arguments: 'n > 5'")
	fl.Var(&boundValue{events, "FILTER", &g.failing}, "error", "which calls of the probe before have failed: 'ret < 0'")
	fl.Var(&boundValue{events, "KIND", &g.kinds}, "kind", "the kind of the spans of the probe before: internal, server, client, producer, consumer")
	fl.StringVar(&g.address, "otlp", "", "send to a collector: http://HOST:4318, https://…, grpc://HOST:4317, grpcs://…")
	fl.StringArrayVar(&g.headers, "header", nil, "send this with each request: NAME=VALUE (may be repeated)")
	fl.Uint64Var(&g.o.Sample, "sample", 1, "keep one in so many traces")
	fl.DurationVar(&g.o.Slower, "slower", 0, "only calls that take at least this long")
	fl.BoolVar(&g.o.Errors, "errors", false, "only calls that have failed")
	fl.StringSliceVar(&g.o.Sets, "set", nil, "the functions of these sets too: "+strings.Join(spanset.Names(), ", ")+", or FILE.txt")
	fl.StringVar(&g.print, "print-set", "", "print the file of this set, and do nothing else")
	fl.StringVar(&g.service, "service", "", "service.name of the spans (default: the name of the program)")
	fl.DurationVar(&g.o.Wait, "wait", 10*time.Second, "with --slower and --errors: how long a call waits for the one that it is in")
	fl.Lookup("output").Usage = "write to a file, as lines of OTLP's JSON"
	return c
}

// run is the verb.
func (g *spanning) run(args, cmd []string) (err error) {
	f := &g.f
	if f.given("print-set") {
		return f.con.printSet(g.print)
	}
	if err := errors.Join(f.check(cmd), g.check()); err != nil {
		return err
	}
	if len(args)+len(f.probes)+len(g.o.Sets) == 0 {
		return usagef("give a function: kprobe spans -p PID main.handle")
	}
	f.others = slices.Clone(args) // the words of -- CMD lie behind them
	f.noInlines = true            // an inlined call has no return
	if err := errors.Join(g.takeProbes(), g.takeSets()); err != nil {
		return err
	}
	defs := make([]*event.Def, len(g.calls))
	for i, c := range g.calls {
		defs[i] = c.Def
	}
	if ok, err := f.elsewhere(defs, cmd); ok || err != nil {
		return err
	}
	t := &tracing{f: f, define: g.define, added: g.prepare}
	g.t = t
	t.left = g.finish
	if t.printed, err = newLines(lineOptions{con: f.con, format: f.format, stat: g.to != nil || f.out != ""}); err != nil {
		return err
	}
	take, lose := func(h *hit.Hit) { g.maker.Hit(h) }, func() { g.maker.Lost() }
	if f.every.named() {
		g.ofAll()
		take, lose = g.hitOf, g.lostOf
	}
	t.hits = newHitQueue(take, func(hit.Loss) { lose() }, g.idle)
	t.end = f.con.catchEnd(t.hits.takeAll)
	err = errors.Join(t.run(defs, cmd), t.close())
	return errors.Join(err, g.summary())
}

// check refuses flags that make no sense.
func (g *spanning) check() (err error) {
	f := &g.f
	switch {
	case f.of.kernel:
		return usagef("-k: spans of the kernel that runs here can not be made: its own tracer does not tell which return belongs to which entry")
	case f.inlines || f.noInlines:
		return usagef("--inlines, --no-inlines: an inlined call has no return, and is no span")
	case f.given("output") && f.out == "":
		return usagef("-o: give the name of a file")
	case f.given("otlp") && f.given("output"):
		return usagef("--otlp and -o exclude each other: send to a collector, or write a file that its otlpjsonfile receiver reads")
	case len(g.headers) > 0 && g.address == "":
		return usagef("--header is for --otlp")
	case g.o.Sample == 0:
		return usagef("--sample 0: 1 keeps all traces, 100 keeps one in a hundred")
	case f.given("slower") && g.o.Slower <= 0:
		return usagef("--slower %v: a time above 0 is wanted", g.o.Slower)
	case f.given("wait") && !g.filtered():
		return usagef("--wait is for --slower and --errors: without them nothing waits")
	case g.o.Wait < 0:
		return usagef("--wait %v: a time can not be negative", g.o.Wait)
	case !f.given("otlp"):
		return nil
	}
	h := http.Header{}
	for _, one := range g.headers {
		name, value, ok := strings.Cut(one, "=")
		if !ok || otlp.CheckHeader(name, value) != nil {
			return usagef("--header %q: NAME=VALUE is wanted, with characters that a header may have", one)
		}
		h.Add(name, value)
	}
	if g.to, err = otlp.Dial(g.address, h); err != nil {
		return usageError{fmt.Errorf("--otlp: %w", err)}
	}
	return nil
}

// filtered says whether most calls are stopped at their return.
func (g *spanning) filtered() bool { return g.o.Slower > 0 || g.o.Errors }

// takeProbes makes the calls of the probes of the command line, which may be given without their kind, and with names of attributes.
func (g *spanning) takeProbes() error {
	f := &g.f
	if len(f.probes)+len(f.others) == 0 {
		return g.bind(nil)
	}
	var names []map[string]string
	for _, probes := range [][]string{f.probes, f.others} {
		for i, text := range probes {
			text, err := spanset.Return(text)
			if err != nil {
				return usageError{err}
			}
			def, of := spanset.Attributes(text)
			probes[i], names = def, append(names, of)
		}
	}
	if _, err := f.definitions(); err != nil {
		return err
	}
	return g.bind(names)
}

// bind makes the calls of the definitions. names are the attributes of each.
func (g *spanning) bind(names []map[string]string) error {
	for i, d := range g.f.listed {
		if d == nil {
			continue
		}
		if d.Kind != event.Return || d.Function {
			return usagef("%q: a span is a call of a function: give the function, or a return probe, r:NAME FUNC", d.Text)
		}
		g.calls = append(g.calls, &spanmaker.Call{Def: d, Names: names[i]})
	}
	for i := range g.failing {
		b := &g.failing[i]
		switch c := g.before(b); {
		case c == nil:
			return usagef("--error %q: no probe stands before it", b.text)
		case c.Failing != "":
			return usagef("--error %q: the probe before it has one already: join them by ||", b.text)
		default:
			c.Failing = b.text
		}
	}
	for i := range g.kinds {
		b := &g.kinds[i]
		kind, err := spanset.Kind(b.text)
		switch c := g.before(b); {
		case err != nil:
			return usageError{fmt.Errorf("--kind: %w", err)}
		case c == nil:
			return usagef("--kind %s: no probe stands before it", b.text)
		case c.Kind != 0:
			return usagef("--kind %s: the probe before it has one already", b.text)
		default:
			c.Kind = kind
		}
	}
	return nil
}

// before is the call of the probe that stands before a flag; nil: there is none.
func (g *spanning) before(b *boundFlag) *spanmaker.Call {
	d := b.probe(g.f.listed, len(g.f.probes))
	i := slices.IndexFunc(g.calls, func(c *spanmaker.Call) bool { return c.Def == d })
	if d == nil || i < 0 {
		return nil
	}
	return g.calls[i]
}

// spansOfAll makes the spans of all processes of an executable: each has a Maker of its own.
type spansOfAll struct {
	said   tellOnce
	offset func() int64 // what times become those of spans by: of all processes the same

	// Of the goroutine that takes the hits.
	of   map[*executableMember]*spanmaker.Maker
	made spanmaker.Stats // by processes that have ended
}

// spanOutput is where spans go: to an exporter, or as text.
type spanOutput struct {
	exporter *otlp.Exporter
	tree     *spans.Tree
	n        uint64
}
