package main

import (
	"fmt"
	"os"
	"strings"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
)

// spanOutput is where spans go: to an exporter, or as text.
type spanOutput struct {
	exporter *otlp.Exporter
	tree     *spans.Tree
	n        uint64
}

// unix notes what the times of hits become those of spans by.
func (o *spanOutput) unix(offset int64) {
	if o.tree != nil {
		o.tree.Unix = offset
	}
}

// open makes the output. Without a core each span has a resource of its own.
func (g *spanning) open(core *kprobes.Core) error {
	f := &g.f
	if f.out != "" {
		file, err := os.Create(f.con.path(f.out))
		if err != nil {
			return f.con.pathError(err, f.out)
		}
		g.to = otlp.NewFile(file)
	}
	if g.to == nil {
		l := g.t.printed
		g.out.tree = &spans.Tree{Write: func(b []byte) {
			_, err := l.out.Write(b)
			l.failed(err)
		}}
		return nil
	}
	var of []otlp.Attr
	if core != nil {
		of = g.resource(core)
	}
	g.out.exporter = otlp.NewExporter(g.to, &otlp.Options{
		Resource: of, Scope: otlp.Scope{Name: "kprobe", Version: plainVersion()},
		Block: f.out != "",
	})
	return nil
}

// plainVersion is this program's version, without what it was built by.
func plainVersion() string {
	v, _, _ := strings.Cut(version(), " (")
	return v
}

// resource describes what is probed, by OpenTelemetry's semantic conventions.
func (g *spanning) resource(core *kprobes.Core) (out []otlp.Attr) {
	name, exe := "kernel", ""
	if m := core.Target().Space().Main(); g.f.of.guest == "" && m != nil {
		name, exe = m.Name, m.Name
	}
	if g.service != "" {
		name = g.service
	}
	out = []otlp.Attr{{Key: "service.name", Value: name}, {Key: "telemetry.sdk.name", Value: "kprobe"}, {Key: "telemetry.sdk.version", Value: plainVersion()}}
	if host, err := os.Hostname(); err == nil && g.f.of.guest == "" {
		out = append(out, otlp.Attr{Key: "host.name", Value: host})
	}
	if exe != "" {
		out = append(out, otlp.Attr{Key: "process.executable.name", Value: exe})
	}
	pid := g.f.of.pid
	if of := g.f.con.of; pid == 0 && of != nil {
		pid = of.Program
	}
	if pid != 0 {
		out = append(out, otlp.Attr{Key: "process.pid", Value: int64(pid)})
	}
	return out
}

// emit takes a span.
func (g *spanning) emit(s *otlp.Span) {
	if g.parent != nil {
		s.Of = g.is
		g.parent.emit(s)
		return
	}
	if g.f.count > 0 && g.out.n >= g.f.count {
		return
	}
	if g.out.n++; g.out.n == g.f.count {
		defer g.t.printed.end()
	}
	if g.out.tree != nil {
		g.out.tree.Add(s)
		return
	}
	g.out.exporter.Export(s)
}

// idle has readers see what there is, when no hit waits.
func (g *spanning) idle() {
	now := uint64(monotonic())
	if g.nester != nil && g.f.of.guest == "" {
		g.nester.Now(now)
	}
	if g.all != nil {
		for _, s := range g.all.of {
			if s.nester != nil {
				s.nester.Now(now)
			}
		}
	}
	g.t.printed.flush()
}

// stats says what has become of calls.
func (g *spanning) stats() (s spans.Stats) {
	switch {
	case g.all != nil:
		return g.all.made
	case g.joiner != nil:
		s = g.joiner.Stats()
	case g.nester != nil:
		s = g.nester.Stats()
	}
	s.Unsampled += g.unsampled
	return s
}

// finish hands over what is held, when all hits have been taken.
func (g *spanning) finish() {
	if g.nester != nil {
		g.nester.Close()
	}
	if g.sampling != nil {
		g.unsampled = g.core.Unsampled(g.sampling)
	}
	if g.out.tree != nil {
		g.out.tree.Close()
	}
}

// summary sends what waits, and tells what has become of all calls.
func (g *spanning) summary() error {
	if g.out.exporter == nil && g.out.tree == nil {
		return nil // the probes could not be added
	}
	w := g.f.con.stderr
	if g.all != nil {
		g.damaged, g.unnamed = g.all.damaged, g.all.unnamed
	}
	if g.damaged > 0 {
		fmt.Fprintf(w, "kprobe: %d records were damaged and are left out\n", g.damaged)
	}
	if g.unnamed > 0 {
		fmt.Fprintf(w, "kprobe: of %d hits the thread is not known, and so not which call they belong to: the program forbids the system call that tells it\n", g.unnamed)
	}
	n := g.stats()
	fmt.Fprintf(w, "spans=%d errors=%d left=%d unsampled=%d unjoined=%d unfollowed=%d", n.Spans, n.Errors, n.Left, n.Unsampled, n.Unjoined, n.Unfollowed)
	if g.contexts() {
		fmt.Fprintf(w, " unread=%d", n.Unread)
	}
	if g.filtered() {
		fmt.Fprintf(w, " split=%d", n.Split)
	} else {
		fmt.Fprintf(w, " active=%d", n.Active)
	}
	if g.out.exporter == nil {
		fmt.Fprintln(w)
		return nil
	}
	st, err := g.out.exporter.Close()
	fmt.Fprintf(w, " sent=%d rejected=%d dropped=%d failed=%d\n", st.Sent, st.Rejected, st.Dropped, st.Failed)
	switch {
	case st.Failed > 0:
		return fmt.Errorf("%d spans could not be sent: %w", st.Failed, st.Err)
	case st.Err != nil:
		fmt.Fprintf(w, "kprobe: %v\n", st.Err)
	}
	if err != nil && g.f.out != "" {
		return writeError(g.f.out, err)
	}
	return err
}
