package oracle

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Fields that are compared.
const (
	FieldAnswer  = "answer"  // errno and texts of the error_log
	FieldColumn  = "column"  // of the caret
	FieldCommand = "command" // as error_log shows it
	FieldListing = "listing" // a line of it
	FieldFormat  = "format"  // a line of a format file
	FieldTrace   = "trace"   // a trace line, or how many there are
	FieldComm    = "comm"    // the thread's name in a trace line
	FieldFlags   = "flags"   // those of a trace line
)

// Difference is one thing that the two sides say differently.
type Difference struct {
	Case         *Case
	Step         int
	Field        string
	Kernel, Ours string
}

// Shown is the step that the difference is about, as the corpus has it.
func (d *Difference) Shown() string { return d.Case.Steps[d.Step].Shown }

// String tells all of it.
func (d *Difference) String() string {
	return fmt.Sprintf("%s:%d: %s: %s\n  kernel: %s\n  ours:   %s", d.Case.File, d.Case.Line, d.Shown(), d.Field, d.Kernel, d.Ours)
}

// Result is what a run over a corpus has found.
type Result struct {
	Cases       int
	Steps       int // definitions and other writes
	Accepted    int // by the kernel
	Refused     int
	Equal       int // steps without any difference
	Formats     int // format files that were compared
	Lines       int // trace lines that were compared
	Differences []*Difference
}

// Pair is a kernel and our side on it.
type Pair struct {
	Kernel, Ours Side
	// Hit runs a command in the kernel that calls what is probed; its name begins the lines
	// of the trace that are compared.
	Hit func(command string) error
}

// Run puts cases to both sides. A case ends at the first step that only one side carries out:
// what follows would differ because of it.
func (p *Pair) Run(cases []*Case) (*Result, error) {
	r := &Result{Cases: len(cases)}
	for _, c := range cases {
		if err := p.run(r, c); err != nil {
			return r, fmt.Errorf("%s: %w", c, err)
		}
	}
	return r, p.reset()
}

func (p *Pair) reset() error { return errors.Join(p.Kernel.Reset(), p.Ours.Reset()) }

func (p *Pair) run(r *Result, c *Case) error {
	if err := p.reset(); err != nil {
		return err
	}
	for i := range c.Steps {
		found, same, err := p.step(r, c, i)
		if err != nil {
			return err
		}
		r.Steps++
		r.Differences = append(r.Differences, found...)
		if len(found) == 0 {
			r.Equal++
		}
		if !same {
			return nil
		}
	}
	return nil
}

// step compares one step; same says that both sides carried it out, or neither.
func (p *Pair) step(r *Result, c *Case, i int) (found []*Difference, same bool, err error) {
	d := &differ{c: c, step: i}
	if c.Steps[i].Op >= OpHit {
		err := p.traces(r, d)
		return d.found, true, err
	}
	k, err := p.Kernel.Do(c.Steps[i])
	if err != nil {
		return nil, false, err
	}
	o, err := p.Ours.Do(c.Steps[i])
	if err != nil {
		return nil, false, err
	}
	if k.Errno == 0 {
		r.Accepted++
	} else {
		r.Refused++
	}
	d.answers(k, o)
	if same = (k.Errno == 0) == (o.Errno == 0); same {
		err = p.state(r, d)
	}
	return d.found, same, err
}

// differ collects the differences of a step.
type differ struct {
	c     *Case
	step  int
	found []*Difference
}

func (d *differ) compare(field, kernel, ours string) {
	if kernel != ours {
		d.found = append(d.found, &Difference{d.c, d.step, field, kernel, ours})
	}
}

// lines compares texts line by line, or whole if they have not as many.
func (d *differ) lines(field, kernel, ours string) {
	a, b := strings.Split(kernel, "\n"), strings.Split(ours, "\n")
	if len(a) != len(b) {
		d.compare(field, kernel, ours)
		return
	}
	for i := range a {
		d.compare(field, a[i], b[i])
	}
}

func (d *differ) answers(k, o Answer) {
	d.compare(FieldAnswer, k.String(), o.String())
	if len(k.Log) != len(o.Log) {
		return // the answers tell
	}
	for i := range k.Log {
		d.compare(FieldCommand, k.Log[i].Command, o.Log[i].Command)
		d.compare(FieldColumn, fmt.Sprint(k.Log[i].Column), fmt.Sprint(o.Log[i].Column))
	}
}

var (
	listed = regexp.MustCompile(`(?m)^[pr]\d*:([^/]+)/(\S+) `)
	number = regexp.MustCompile(`(?m)^ID: \d+$`)
)

// state compares listings and format files.
func (p *Pair) state(r *Result, d *differ) error {
	k, err := p.Kernel.Listing()
	if err != nil {
		return err
	}
	o, err := p.Ours.Listing()
	if err != nil {
		return err
	}
	d.lines(FieldListing, k, o)
	if d.c.Steps[d.step].Op > OpTruncate || len(listed.FindAllString(k, -1)) != len(listed.FindAllString(o, -1)) {
		return nil
	}
	theirs := listed.FindAllStringSubmatch(k, -1)
	for i, m := range listed.FindAllStringSubmatch(o, -1) {
		fo, err := p.Ours.Format(m[1], m[2])
		if err != nil {
			return err
		}
		fk, err := p.Kernel.Format(theirs[i][1], theirs[i][2])
		if err != nil {
			return err
		}
		r.Formats++
		d.lines(FieldFormat, number.ReplaceAllString(fk, "ID: N"), number.ReplaceAllString(fo, "ID: N"))
	}
	return nil
}
