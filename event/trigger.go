package event

import (
	"fmt"
	"math"
	"strings"
	"syscall"
)

// Trigger is something that an event does at its hits, in the language of the kernel's trigger files
// (Documentation/trace/events.rst, section 6; kernel/trace/trace_events_trigger.c, Linux 6.18):
//
//	traceon[:COUNT] [if FILTER]
//	traceoff[:COUNT] [if FILTER]
//	stacktrace[:COUNT] [if FILTER]
//	enable_event:GROUP:EVENT[:COUNT] [if FILTER]     disable_event, enable_hist and disable_hist likewise
//	hist:KEYS… [if FILTER]                           as ParseHist takes it
//
// ParseTriggerCommand takes more: see there.
type Trigger struct {
	Text    string // as it was written, without spaces around it
	Command TriggerCommand
	Remove  bool   // it takes a trigger away: it was written with !
	Group   string // of the event that is enabled or disabled, or whose histograms are; "": Command names none
	Name    string
	Count   uint64 // how often the trigger acts at most; Unlimited: there is no limit
	Filter  string // behind "if", at which hits the trigger acts; "": at all
	Hist    *Hist  // of TriggerHist
	more    string // a count with what was not read of it
}

// Unlimited is the Count of a trigger without one.
const Unlimited = math.MaxUint64

// TriggerCommand says what a trigger does.
type TriggerCommand uint8

// The commands.
const (
	TriggerTraceOn TriggerCommand = iota
	TriggerTraceOff
	TriggerStacktrace
	TriggerEnableEvent
	TriggerDisableEvent
	TriggerEnableHist
	TriggerDisableHist
	TriggerHist
	TriggerSnapshot
)

var triggerCommands = [...]string{
	TriggerTraceOn:      "traceon",
	TriggerTraceOff:     "traceoff",
	TriggerStacktrace:   "stacktrace",
	TriggerEnableEvent:  "enable_event",
	TriggerDisableEvent: "disable_event",
	TriggerEnableHist:   "enable_hist",
	TriggerDisableHist:  "disable_hist",
	TriggerHist:         "hist",
	TriggerSnapshot:     "snapshot",
}

// String is the command as it is written.
func (c TriggerCommand) String() string { return triggerCommands[c] }

// HasTarget says whether the command names an event.
func (c TriggerCommand) HasTarget() bool { return c >= TriggerEnableEvent && c <= TriggerDisableHist }

// String is the trigger as the event's trigger file shows it.
func (t *Trigger) String() string {
	if t.Command == TriggerHist {
		return t.Hist.String()
	}
	s := t.Command.String()
	if t.Command.HasTarget() {
		s += ":" + t.Group + ":" + t.Name
	}
	if t.Count == Unlimited {
		s += ":unlimited"
	} else {
		s += fmt.Sprintf(":count=%d", int64(t.Count)) // the kernel prints a long
	}
	if t.Filter != "" {
		s += " if " + t.Filter
	}
	return s
}

// TriggerError is a trigger that was refused: by the parser, or later, when it was added to its event. It answers errors.Is with its
// error number, which is all that the kernel says of such a trigger.
type TriggerError struct {
	Errno   syscall.Errno
	Trigger string // its text
	Pos     int    // byte of Trigger that is wrong; len(Trigger) where something is missing
	Why     string // what is wrong, and what to do instead
}

// Error gives the error in one line.
func (e *TriggerError) Error() string {
	return fmt.Sprintf("trigger %q, column %d: %s", e.Trigger, e.Pos+1, e.Why)
}

// Is says whether target is the error number.
func (e *TriggerError) Is(target error) bool { return target == e.Errno }

// Refuse makes the error for what turned out later about a trigger. It is told of the first place of the trigger's text that reads as
// part does, or of its start.
func (t *Trigger) Refuse(no syscall.Errno, part, why string) *TriggerError {
	return &TriggerError{Errno: no, Trigger: t.Text, Pos: max(strings.Index(t.Text, part), 0), Why: why}
}

// maxTrigger is the most bytes of a trigger, with its NUL: a page of the kernel's.
const maxTrigger = 4096

const (
	triggerForm = "a trigger is COMMAND[:COUNT] [if FILTER]"
	countForm   = "COUNT is how often the trigger acts at most: a number, decimal, 0x or octal"
)

// ParseTrigger parses a trigger. Errors are *TriggerError, of a histogram also *HistError. What ParseTriggerCommand takes beyond the
// triggers above is refused.
func ParseTrigger(text string) (*Trigger, error) {
	t, err := ParseTriggerCommand(text)
	p := triggerParser{t: &Trigger{Text: strings.TrimSpace(text)}}
	switch name := p.command(); {
	case strings.HasPrefix(name, "!"):
		return nil, p.fail(0, "it would remove a trigger: leave out the one that is not wanted")
	case name == "snapshot":
		return nil, p.fail(0, "a trace here has no second buffer that could be swapped: traceoff keeps what came before a hit")
	case err != nil:
		return nil, err
	case t.more != "":
		return nil, p.fail(strings.Index(t.Text, t.more), countForm)
	case t.Hist == nil:
		return t, nil
	}
	t.Hist, err = ParseHist(t.Hist.Text)
	return t, err
}

// ParseTriggerCommand parses what one write to a trigger file of the kernel's holds. Beside the triggers that ParseTrigger takes there are
//
//	!COMMAND                    Remove: of all but hist and the commands that name an event, COMMAND is all that is read of it
//	snapshot[:COUNT] [if FILTER]
//	COMMAND:COUNT:…             what is behind the count is not read
//	hist:…                      as ParseHistCommand takes it
//
// Errors are as those of ParseTrigger.
func ParseTriggerCommand(text string) (*Trigger, error) {
	p := triggerParser{t: &Trigger{Text: strings.TrimSpace(text), Count: Unlimited}}
	t := p.t
	if len(text) >= maxTrigger {
		return nil, p.fail(0, "it is too long: at most 4,095 bytes are read")
	}
	name := p.command()
	name, t.Remove = strings.CutPrefix(name, "!")
	for c, known := range triggerCommands {
		if known != name {
			continue
		}
		if t.Command = TriggerCommand(c); t.Command == TriggerHist {
			return t, p.hist()
		}
		return t, p.parse()
	}
	return nil, p.fail(0, triggerForm+", and COMMAND one of "+strings.Join(triggerCommands[:TriggerSnapshot], ", "))
}

// triggerParser has what is not read yet.
type triggerParser struct {
	t    *Trigger
	rest string // an end of the text
}

func (p *triggerParser) fail(pos int, why string) *TriggerError {
	return &TriggerError{Errno: syscall.EINVAL, Trigger: p.t.Text, Pos: pos, Why: why}
}

// command takes the command.
func (p *triggerParser) command() string {
	name := p.t.Text
	if i := strings.IndexAny(name, ": \t"); i >= 0 {
		name, p.rest = name[:i], strings.TrimLeft(name[i+1:], triggerSpaces)
	}
	return name
}

// pos is where the rest begins.
func (p *triggerParser) pos() int { return len(p.t.Text) - len(p.rest) }

// hist reads a histogram.
func (p *triggerParser) hist() (err error) {
	if p.t.Hist, err = ParseHistCommand("hist:" + p.rest); err == nil {
		p.t.Filter, p.t.Hist.Remove = p.t.Hist.Filter, p.t.Remove
	}
	return err
}

// parse reads what stands behind the command: the event that it names, the count, the filter.
func (p *triggerParser) parse() error {
	t := p.t
	if t.Command.HasTarget() {
		if err := p.target(); err != nil {
			return err
		}
	} else if t.Remove {
		return nil
	} else if p.rest != "" && isDigit(p.rest[0]) {
		if err := p.count(p.word()); err != nil {
			return err
		}
	}
	p.rest = strings.TrimLeft(p.rest, triggerSpaces)
	if p.rest == "" || t.Remove {
		return nil
	}
	start := p.pos()
	if p.word() != "if" {
		return p.fail(start, triggerForm+": this is neither a COUNT nor if")
	}
	if t.Filter = strings.TrimLeft(p.rest, triggerSpaces); t.Filter == "" {
		return p.fail(len(t.Text), "no filter follows if")
	}
	return nil
}

// word takes what stands before the next space.
func (p *triggerParser) word() string {
	n := strings.IndexAny(p.rest, " \t")
	if n < 0 {
		n = len(p.rest)
	}
	w := p.rest[:n]
	p.rest = p.rest[n:]
	return w
}

// target reads GROUP:EVENT[:COUNT].
func (p *triggerParser) target() error {
	t, start := p.t, p.pos()
	param := p.word()
	group, rest, ok := strings.Cut(param, ":")
	name, count, counted := strings.Cut(rest, ":")
	if !ok || group == "" || name == "" {
		return p.fail(start, fmt.Sprintf("it names no event: %s:GROUP:EVENT, where GROUP is %s if the probe names none", t.Command, DefaultGroup))
	}
	if t.Group, t.Name = group, name; counted && !t.Remove {
		return p.count(count)
	}
	return nil
}

// count reads a count, which has just been taken from the rest.
func (p *triggerParser) count(s string) error {
	at := p.pos() - len(s)
	s, more, has := strings.Cut(s, ":")
	if has {
		p.t.more = s + ":" + more
	}
	n, ok := parseUint(s)
	if !ok {
		err := p.fail(at, countForm)
		if tooLarge(s) != nil {
			err.Errno = syscall.ERANGE
		}
		return err
	}
	p.t.Count = n
	return nil
}
