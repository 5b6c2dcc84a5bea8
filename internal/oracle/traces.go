package oracle

import (
	"fmt"
	"regexp"
	"strings"
)

// traceLine is a line of the trace file: name, number of the thread, CPU, flags, time, event
// and what is behind it (G46).
var traceLine = regexp.MustCompile(`^ *(\S.*)-(\d+) +\[(\d+)\] (\S{5}) +\d+\.\d{6}: (.*)$`)

// traces hits, and compares the lines of both sides. A line is compared without its time; if
// each side was hit alone, also without the number of the thread.
func (p *Pair) traces(r *Result, d *differ) error {
	s := d.c.Steps[d.step]
	comm, _, _ := strings.Cut(s.Text, " ")
	k, o, err := p.hit(s)
	if err != nil {
		return err
	}
	theirs, err := linesOf(k, comm, s.Op == OpHit)
	if err != nil {
		return err
	}
	mine, err := linesOf(o, comm, s.Op == OpHit)
	if err != nil {
		return err
	}
	if len(theirs) == 0 {
		return fmt.Errorf("%q: the kernel's own trace has no line of it", s.Shown)
	}
	r.Steps++
	r.Lines += len(theirs)
	if len(theirs) != len(mine) {
		d.compare(FieldTrace, strings.Join(theirs, "\n"), strings.Join(mine, "\n"))
		return nil
	}
	for i := range theirs {
		d.compare(FieldTrace, theirs[i], mine[i])
	}
	return nil
}

// hit runs the command, and gives both traces of it.
func (p *Pair) hit(s Step) (kernel, ours string, err error) {
	if s.Op == OpTurn {
		if kernel, err = p.turn(p.Kernel, s.Text); err == nil {
			ours, err = p.turn(p.Ours, s.Text)
		}
		return kernel, ours, err
	}
	both := []Side{p.Kernel, p.Ours}
	if err := p.record(both, s.Text); err != nil {
		return "", "", err
	}
	if kernel, err = p.Kernel.Trace(); err == nil {
		ours, err = p.Ours.Trace()
	}
	return kernel, ours, err
}

// record runs the command while sides record, whose traces are empty before.
func (p *Pair) record(sides []Side, command string) error {
	for _, side := range sides {
		if _, err := side.Trace(); err != nil {
			return err
		}
		if err := side.Record(true); err != nil {
			return err
		}
	}
	if err := p.Hit(command); err != nil {
		return err
	}
	for _, side := range sides {
		if err := side.Record(false); err != nil {
			return err
		}
	}
	return nil
}

// turn enables all events of one side for one run of the command.
func (p *Pair) turn(side Side, command string) (string, error) {
	if err := enable(side, OpEnable); err != nil {
		return "", err
	}
	if err := p.record([]Side{side}, command); err != nil {
		return "", err
	}
	text, err := side.Trace()
	if err == nil {
		err = enable(side, OpDisable)
	}
	return text, err
}

// enable enables or disables all events of a side.
func enable(side Side, op Op) error {
	text, err := side.Listing()
	if err != nil {
		return err
	}
	for _, m := range listed.FindAllStringSubmatch(text, -1) {
		ev := m[1] + "/" + m[2]
		a, err := side.Do(Step{Op: op, Text: ev})
		if err == nil && a.Errno != 0 {
			err = fmt.Errorf("event %s is not enabled or disabled: %s", ev, a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// linesOf gives the lines of a command's threads. Whether the thread was to be preempted is
// left out of the flags: the two sides look at it at different moments. A line of no form of
// its own goes on with the one before it: the kernel escapes nothing in strings.
func linesOf(text, comm string, thread bool) (out []string, err error) {
	last := true // the line before is one of them
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		m := traceLine.FindStringSubmatch(line)
		switch {
		case m == nil && len(out) > 0 && last:
			out[len(out)-1] += "\n" + line
			continue
		case m == nil && last:
			return nil, fmt.Errorf("a trace line of another form: %q", line)
		case m == nil:
			continue
		}
		if last = m[1] == comm; !last {
			continue
		}
		if !thread {
			m[2] = "N"
		}
		out = append(out, fmt.Sprintf("%s-%s [%s] %s.%s %s", m[1], m[2], m[3], m[4][:1], m[4][2:], m[5]))
	}
	return out, nil
}
