package oracle

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// hit is a line of a trace file.
type hit struct {
	comm, pid string
	cpu       string // in brackets
	flags     string // but for the second: whether the thread was to be preempted
	rest      string // event and what is behind it
}

// traces hits, and compares the lines of both sides, without their times; if each was hit
// alone, also without threads and CPUs.
func (p *Pair) traces(r *Result, d *differ) error {
	s := d.c.Steps[d.step]
	var theirs, ours []hit
	var err error
	if s.Op == OpTurn {
		theirs, ours, err = p.turns(s.Text)
	} else {
		theirs, ours, err = p.record(p.Kernel, p.Ours, s.Text)
	}
	if err != nil {
		return err
	}
	if len(theirs) == 0 {
		return fmt.Errorf("%q: the kernel's own trace has no line of it", s.Shown)
	}
	r.Steps++
	r.Lines += len(theirs)
	d.compare(FieldTrace, fmt.Sprint(len(theirs), " lines"), fmt.Sprint(len(ours), " lines"))
	for i := range min(len(theirs), len(ours)) {
		k, o := theirs[i], ours[i]
		d.compare(FieldTrace, k.rest, o.rest)
		d.compare(FieldComm, k.comm, o.comm)
		d.compare(FieldFlags, k.flags, o.flags)
		if s.Op == OpHit {
			d.compare(FieldTrace, "thread "+k.pid+" "+k.cpu, "thread "+o.pid+" "+o.cpu)
		}
	}
	return nil
}

// turns runs the command for each side alone. Ours is the first: a probe of the kernel's may
// leave traces in the code for a while.
func (p *Pair) turns(command string) (theirs, ours []hit, err error) {
	for _, side := range []Side{p.Ours, p.Kernel} {
		if err := enable(side, OpEnable); err != nil {
			return nil, nil, err
		}
		var other Side
		if side == p.Ours {
			_, ours, err = p.record(other, side, command)
		} else {
			theirs, _, err = p.record(side, other, command)
		}
		if err == nil {
			err = enable(side, OpDisable)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return theirs, ours, nil
}

// record runs the command while sides record, whose traces are empty before.
func (p *Pair) record(kernel, ours Side, command string) (theirs, mine []hit, err error) {
	for _, side := range []Side{kernel, ours} {
		if side == nil {
			continue
		}
		if _, err := side.Trace(); err != nil {
			return nil, nil, err
		}
		if err := side.Record(true); err != nil {
			return nil, nil, err
		}
	}
	if err := p.Hit(command); err != nil {
		return nil, nil, err
	}
	comm, _, _ := strings.Cut(command, " ")
	if kernel != nil {
		if theirs, err = stopped(kernel, comm); err != nil {
			return nil, nil, err
		}
	}
	if ours == nil {
		return theirs, nil, nil
	}
	mine, err = p.await(ours, comm, len(theirs))
	return theirs, mine, err
}

// patience is how long records of the engine's may be on their way.
const patience = 10 * time.Second

// await reads our side's trace until it has the lines that the kernel has, or some that stay
// as many as they are.
func (p *Pair) await(ours Side, comm string, want int) (out []hit, err error) {
	end := time.Now().Add(patience)
	for same := 0; same < 5 && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		text, err := ours.Look()
		if err != nil {
			return nil, err
		}
		now, err := hitsOf(text, comm)
		if err != nil {
			return nil, err
		}
		switch {
		case want > 0 && len(now) >= want:
			same = 5
		case want == 0 && len(now) > 0 && len(now) == len(out):
			same++
		}
		out = now
	}
	_, err = stopped(ours, comm)
	return out, err
}

// stopped ends a side's recording and gives what it has.
func stopped(side Side, comm string) ([]hit, error) {
	if err := side.Record(false); err != nil {
		return nil, err
	}
	text, err := side.Trace()
	if err != nil {
		return nil, err
	}
	return hitsOf(text, comm)
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

// traceLine is a line of the trace file: name, number of the thread, CPU, flags, time, event
// and what is behind it.
var traceLine = regexp.MustCompile(`^ *(\S.*)-(\d+) +(\[\d+\]) (\S)\S(\S{3}) +\d+\.\d{6}: (.*)$`)

// hitsOf gives the lines of the threads of a command, those too that they wrote under another
// name. Whether the thread was to be preempted is left out of the flags: the two sides look
// at it at different moments. A line of no form of its own goes on with the one before it: the
// kernel escapes nothing in strings.
func hitsOf(text, comm string) ([]hit, error) {
	var all []hit
	mine := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		m := traceLine.FindStringSubmatch(line)
		switch {
		case line == "" || line[0] == '#':
		case m != nil:
			all = append(all, hit{m[1], m[2], m[3], m[4] + "." + m[5], m[6]})
			mine[m[2]] = mine[m[2]] || m[1] == comm
		case len(all) == 0:
			return nil, fmt.Errorf("a trace line of another form: %q", line)
		default:
			all[len(all)-1].rest += "\n" + line
		}
	}
	var out []hit
	for _, h := range all {
		if mine[h.pid] {
			out = append(out, h)
		}
	}
	return out, nil
}
