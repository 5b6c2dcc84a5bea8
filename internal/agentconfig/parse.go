package agentconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/internal/metrics"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanset"
)

// MaxSize is the size of the largest file that is taken, in bytes.
const MaxSize = 1 << 20

// Parse reads a file. The error has all that is wrong with it, each with its line and column.
func Parse(text []byte) (*Config, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("the file has %d bytes: at most %d are taken", len(text), MaxSize)
	}
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	r := &reader{}
	c := &Config{}
	if err := d.Decode(&more); err == nil {
		r.refuse(&more, "a second document begins here: write one")
		return nil, r.err()
	}
	if len(doc.Content) == 0 {
		r.refuse(&doc, "the file is empty: write at least targets")
		return nil, r.err()
	}
	c.read(r, doc.Content[0])
	if err := r.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) read(r *reader, n *yaml.Node) {
	listen := n
	names := map[string]int{}
	r.keys(n, "the file", map[string]func(*yaml.Node){
		"listen":     func(v *yaml.Node) { listen, c.Listen = v, r.text(v, "listen") },
		"token_file": r.into(&c.TokenFile, "token_file"),
		"audit_log":  r.into(&c.AuditLog, "audit_log"),
		"otlp":       func(v *yaml.Node) { c.OTLP.read(r, v) },
		"targets": func(v *yaml.Node) {
			r.list(v, "targets", func(v *yaml.Node) {
				t := &Target{}
				t.read(r, v)
				if first, twice := names[t.Name]; twice && t.Name != "" {
					r.refuse(v, "target %s: there is one of this name in line %d: give it another", t.Name, first)
				}
				names[t.Name] = v.Line
				c.Targets = append(c.Targets, t)
			})
		},
	})
	switch {
	case len(r.errs) > 0: // what is missing may be what is misspelt
		return
	case len(c.Targets) == 0:
		r.refuse(n, "targets are missing: write at least one")
	case c.Listen != "" && c.TokenFile == "":
		r.refuse(listen, "listen: no request is answered without a token: write token_file, with the name of a file that has one")
	case c.Listen == "" && c.TokenFile != "":
		r.refuse(n, "token_file is for listen: write listen: 127.0.0.1:9464")
	}
	if c.OTLP.Endpoint == "" {
		for i, t := range c.Targets {
			if slices.ContainsFunc(t.Probes, func(p *Probe) bool { return p.Spans }) {
				r.refuse(n, "target %d, %s: spans have nowhere to go: write otlp, with endpoint: http://HOST:4318", i+1, t.Name)
			}
		}
	}
}

func (o *OTLP) read(r *reader, n *yaml.Node) {
	r.keys(n, "otlp", map[string]func(*yaml.Node){
		"endpoint": func(v *yaml.Node) {
			if o.Endpoint = r.text(v, "endpoint"); o.Endpoint == "" {
				return
			}
			if s, err := otlp.Dial(o.Endpoint, http.Header{}); err != nil {
				r.refuse(v, "endpoint: %v", err)
			} else {
				_ = s.Close() // it has not connected
			}
		},
		"headers": func(v *yaml.Node) {
			o.Headers = r.texts(v, "headers", func(k *yaml.Node) {
				if err := otlp.CheckHeader(k.Value, ""); err != nil {
					r.refuse(k, "headers: %v", err)
				}
			})
		},
		"service": r.into(&o.Service, "service"),
	})
	if o.Endpoint == "" && len(r.errs) == 0 {
		r.refuse(n, "otlp: endpoint is missing: write endpoint: http://HOST:4318")
	}
}

// name is what a target may be called.
var name = regexp.MustCompile(`^[A-Za-z0-9][-_.A-Za-z0-9]*$`)

func (t *Target) read(r *reader, n *yaml.Node) {
	before := len(r.errs)
	var probes, sets, chosen *yaml.Node
	r.keys(n, "a target", map[string]func(*yaml.Node){
		"name": func(v *yaml.Node) {
			if t.Name = r.text(v, "name"); t.Name != "" && !name.MatchString(t.Name) {
				r.refuse(v, "name %q: letters, digits, -, _ and . are taken", t.Name)
			}
		},
		"pid": func(v *yaml.Node) {
			text := r.text(v, "pid")
			pid, err := strconv.ParseInt(text, 10, 32)
			if t.PID = int(pid); text != "" && (err != nil || pid < 1) {
				r.refuse(v, "pid %q: the number of a process is wanted", text)
			}
		},
		"pidfile": r.into(&t.PIDFile, "pidfile"),
		"exe": func(v *yaml.Node) {
			if t.Exe = r.text(v, "exe"); t.Exe != "" && !path.IsAbs(t.Exe) {
				r.refuse(v, "exe %q: give the whole path of the program's file, such as /usr/sbin/nginx", t.Exe)
			}
		},
		"cgroup": func(v *yaml.Node) {
			chosen = v
			t.only(r, v, executables.Only{Group: r.text(v, "cgroup")})
		},
		"container": func(v *yaml.Node) {
			chosen = v
			t.only(r, v, executables.Only{Container: r.text(v, "container")})
		},
		"labels": func(v *yaml.Node) { t.Labels = r.labels(v) },
		"probes": func(v *yaml.Node) { probes = v },
		"sets":   func(v *yaml.Node) { sets = v },
	})
	events := map[string]int{}
	if probes != nil {
		r.list(probes, "probes", func(v *yaml.Node) {
			p := &Probe{}
			p.read(r, v, t.Labels, events)
			t.Probes = append(t.Probes, p)
		})
	}
	if sets != nil {
		t.readSets(r, sets)
	}
	switch {
	case len(r.errs) > before:
	case t.Name == "":
		r.refuse(n, "a target: name is missing: its metrics and audit lines are found by it")
	case t.Exe == "" && chosen != nil:
		r.refuse(chosen, "target %s: cgroup and container choose among the processes of a program: write exe, with the path of its file", t.Name)
	case t.named() != 1:
		r.refuse(n, "target %s: write pid, pidfile or exe, one of the three", t.Name)
	case probes == nil && sets == nil:
		r.refuse(n, "target %s: probes are missing: write at least one, or sets", t.Name)
	}
}

// readSets reads the sets, each of which becomes a probe.
func (t *Target) readSets(r *reader, n *yaml.Node) {
	at := map[string]int{}
	r.list(n, "sets", func(v *yaml.Node) {
		p := &Probe{Set: r.text(v, "sets"), Spans: true, Labels: maps.Clone(t.Labels)}
		if p.Set == "" {
			return
		}
		if first, twice := at[p.Set]; twice {
			r.refuse(v, "sets: %s is there twice, first in line %d: leave one out", p.Set, first)
		}
		at[p.Set] = v.Line
		if err := p.readSet(); err != nil {
			r.refuse(v, "sets: %v", err)
		}
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Define = "set " + p.Set
		p.Key = p.key()
		t.Probes = append(t.Probes, p)
	})
}

// readSet reads the file of the set, and says what is wrong with it.
func (p *Probe) readSet() (err error) {
	switch {
	case !spanset.IsFile(p.Set):
		p.set, err = spanset.Text(p.Set)
	case !path.IsAbs(p.Set):
		return fmt.Errorf("%s: give the whole path of the file, such as /etc/kprobe/shop.txt", p.Set)
	default:
		p.set, err = regular(p.Set)
	}
	if err == nil {
		_, err = spanset.Read(p.Set, p.set)
	}
	return err
}

// regular reads the file of a set, if it is one that ends.
func regular(name string) ([]byte, error) {
	st, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file: give the file of a set", name)
	}
	return spanset.File(name)
}

// only reads a key that chooses among the processes of a program.
func (t *Target) only(r *reader, n *yaml.Node, given executables.Only) {
	o, err := executables.NewOnly(given.Group, given.Container)
	if err != nil {
		r.refuse(n, "%v", err)
	}
	t.Only.Group = cmp.Or(o.Group, t.Only.Group)
	t.Only.Container = cmp.Or(o.Container, t.Only.Container)
}

// named counts the ways in which the file names the processes.
func (t *Target) named() (n int) {
	for _, given := range []bool{t.PID != 0, t.PIDFile != "", t.Exe != ""} {
		if given {
			n++
		}
	}
	return n
}

// label is the name of a label (Prometheus), and taken are those that metrics have already.
var (
	label = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	taken = []string{"target", "group", "event", "le", "comm"}
)

func (r *reader) labels(n *yaml.Node) map[string]string {
	return r.texts(n, "labels", func(k *yaml.Node) {
		switch {
		case !label.MatchString(k.Value) || strings.HasPrefix(k.Value, "__"):
			r.refuse(k, "labels: %q is no name of a label: letters, digits and _ are taken, and no __ at the start", k.Value)
		case slices.Contains(taken, k.Value):
			r.refuse(k, "labels: metrics have a label %q already: take another name", k.Value)
		}
	})
}

func (p *Probe) read(r *reader, n *yaml.Node, labels map[string]string, events map[string]int) {
	before := len(r.errs)
	at := map[string]*yaml.Node{}
	note := func(key string, f func(*yaml.Node)) func(*yaml.Node) {
		return func(v *yaml.Node) { at[key] = v; f(v) }
	}
	p.Labels = maps.Clone(labels)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	r.keys(n, "a probe", map[string]func(*yaml.Node){
		"define": note("define", r.into(&p.Define, "define")),
		"filter": note("filter", r.into(&p.Filter, "filter")),
		"hist":   note("hist", r.into(&p.Hist, "hist")),
		"failed": note("failed", r.into(&p.Failed, "failed")),
		"kind": note("kind", func(v *yaml.Node) {
			if p.Kind = r.text(v, "kind"); p.Kind != "" {
				if _, err := spanset.Kind(p.Kind); err != nil {
					r.refuse(v, "%v", err)
				}
			}
		}),
		"spans": note("spans", func(v *yaml.Node) {
			if text := r.text(v, "spans"); text != "" && (v.Tag != "!!bool" || v.Decode(&p.Spans) != nil) {
				r.refuse(v, "spans %q: true or false is wanted", text)
			}
		}),
		"budget": func(v *yaml.Node) { p.budget(r, v) },
		"labels": func(v *yaml.Node) { maps.Copy(p.Labels, r.labels(v)) },
	})
	p.Key = p.key()
	switch {
	case len(r.errs) > before:
	case at["define"] == nil:
		r.refuse(n, "a probe: define is missing: write define: 'p:NAME FUNCTION'")
	default:
		p.check(r, at, events)
	}
}

func (p *Probe) budget(r *reader, n *yaml.Node) {
	one := func(v *yaml.Node) {
		if text := r.text(v, "budget"); text != "" {
			if err := p.Budget.Set(text); err != nil {
				r.refuse(v, "budget %q: %v", text, err)
			}
		}
	}
	if n.Kind == yaml.SequenceNode {
		r.list(n, "budget", one)
		return
	}
	one(n)
}

// key is all that the file says of the probe.
func (p *Probe) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q %t %q %q %q %s", p.Define, p.Filter, p.Hist, p.Spans, p.Failed, p.Kind, p.set, p.Budget)
	for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
		fmt.Fprintf(&b, " %s=%q", name, p.Labels[name])
	}
	return b.String()
}

// check says what is wrong with a probe whose keys are all there. at has the values of its keys.
func (p *Probe) check(r *reader, at map[string]*yaml.Node, events map[string]int) {
	text := p.Define
	if p.Spans {
		text, _ = spanset.Attributes(text)
	}
	d, err := event.Parse(text)
	switch {
	case err != nil:
		r.refuse(at["define"], "define %q: %v", p.Define, err)
		return
	case d == nil || d.Kind == event.Delete:
		r.refuse(at["define"], "define %q: this is no probe: write 'p:NAME FUNCTION' or 'r:NAME FUNCTION'", p.Define)
		return
	case p.Spans && (d.Kind != event.Return || d.Function):
		r.refuse(at["define"], "define %q: a span is a call of a function: write a return probe, 'r:NAME FUNCTION'", p.Define)
	case p.Spans && p.Hist != "":
		r.refuse(at["hist"], "hist: a probe of spans has none: give the histogram a probe of its own")
	case !p.Spans && p.Kind != "":
		r.refuse(at["kind"], "kind is for spans: write spans: true, or leave it out")
	case !p.Spans && p.Failed != "":
		r.refuse(at["failed"], "failed is for spans: write spans: true, or leave it out")
	}
	if d.Name != "" {
		full := d.Group + "/" + d.Name
		if first, twice := events[full]; twice {
			r.refuse(at["define"], "define: the target has an event %s in line %d: give this one another name", d.Name, first)
		}
		events[full] = at["define"].Line
	}
	if p.Hist != "" {
		p.checkHist(r, at["hist"])
	}
}

func (p *Probe) checkHist(r *reader, n *yaml.Node) {
	h, err := event.ParseHist(p.Hist)
	if err == nil {
		err = metrics.CheckKeys(h)
	}
	switch {
	case err != nil:
		r.refuse(n, "hist %q: %v", p.Hist, err)
	case len(h.Vars)+len(h.Actions) > 0 || h.Name != "":
		r.refuse(n, "hist %q: variables, actions and name= are for kprobe hist: write keys, vals, size and a filter", p.Hist)
	case h.Filter != "" && p.Filter != "":
		r.refuse(n, "hist %q: the probe has filter already: join the two by && there", p.Hist)
	}
}
