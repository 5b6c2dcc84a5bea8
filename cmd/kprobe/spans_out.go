package main

import (
	"fmt"
	"os"
	"strings"

	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/internal/spans"
)

// unix notes what the times of hits become those of spans by.
func (o *spanOutput) unix(offset int64) {
	if o.tree != nil {
		o.tree.Unix = offset
	}
}

// open makes the output. of is what all spans are of; nil: each has a resource of its own.
func (g *spanning) open(of *otlp.Resource) error {
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
	var attrs []otlp.Attr
	if of != nil {
		attrs = of.Attrs
	}
	g.out.exporter = otlp.NewExporter(g.to, &otlp.Options{
		Resource: attrs, Scope: otlp.Scope{Name: "kprobe", Version: plainVersion()},
		Block: f.out != "",
	})
	return nil
}

// plainVersion is this program's version, without what it was built by.
func plainVersion() string {
	v, _, _ := strings.Cut(version(), " (")
	return v
}

// emit takes a span.
func (g *spanning) emit(s *otlp.Span) {
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
	if g.all != nil {
		for _, m := range g.all.of {
			m.Idle()
		}
	} else {
		g.maker.Idle()
	}
	g.t.printed.flush()
}

// stats says what has become of calls.
func (g *spanning) stats() spanmaker.Stats {
	if g.all != nil {
		return g.all.made
	}
	return g.maker.Stats()
}

// finish hands over what is held, when all hits have been taken.
func (g *spanning) finish() {
	if g.maker != nil {
		g.maker.Finish()
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
	n := g.stats()
	if n.Damaged > 0 {
		fmt.Fprintf(w, "kprobe: %d records were damaged and are left out\n", n.Damaged)
	}
	if n.Unnamed > 0 {
		fmt.Fprintf(w, "kprobe: of %d hits the thread is not known, and so not which call they belong to: the program forbids the system call that tells it\n", n.Unnamed)
	}
	fmt.Fprintf(w, "spans=%d errors=%d left=%d unsampled=%d unjoined=%d unfollowed=%d", n.Spans, n.Errors, n.Left, n.Unsampled, n.Unjoined, n.Unfollowed)
	if spanmaker.Contexts(g.calls) {
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
