package oracle

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/trace"
)

// Answer is what is said to a write.
type Answer struct {
	Errno syscall.Errno // 0: it was carried out
	Log   []LogEntry    // what error_log has of it
}

// LogEntry is an entry of error_log, without its time.
type LogEntry struct {
	Text    string // behind "trace_kprobe: error: "
	Command string
	Column  int // of the caret in the command, from 0
}

// String is the answer without command and column.
func (a Answer) String() string {
	if a.Errno == 0 {
		return "ok"
	}
	s := unix.ErrnoName(a.Errno)
	for _, e := range a.Log {
		s += fmt.Sprintf(" %q", e.Text)
	}
	return s
}

// Side is one of the two that are compared.
type Side interface {
	// Reset disables and deletes all probe events.
	Reset() error
	// Do carries out a step. The error is one of the way to the side.
	Do(Step) (Answer, error)
	// Listing gives the contents of kprobe_events.
	Listing() (string, error)
	// Format gives an event's format file.
	Format(group, name string) (string, error)
	// Record says whether hits go to the trace.
	Record(on bool) error
	// Look gives the trace file.
	Look() (string, error)
	// Trace gives the trace file, and clears it.
	Trace() (string, error)
}

// Files are the files of a machine.
type Files interface {
	// Read gives a file's contents.
	Read(path string) (string, error)
	// Write writes to a file by one write(2), after truncating it if trunc, and gives the
	// errno of what failed, 0 for nothing.
	Write(path, text string, trunc bool) syscall.Errno
}

// Kernel is the side of a kernel.
type Kernel struct {
	Files Files
	Root  string // where tracefs is mounted
	used  map[string]bool
	quiet bool // tracing_on is known to be 0
}

// Reset implements Side.
func (k *Kernel) Reset() error {
	for ev := range k.used {
		k.write("events/"+ev+"/enable", "0", true) // it may be gone
	}
	k.used = map[string]bool{}
	if !k.quiet {
		if err := k.Record(false); err != nil {
			return err
		}
	}
	if no := k.write("kprobe_events", "", true); no != 0 {
		return fmt.Errorf("the kernel's events can not be deleted: %w", no)
	}
	return nil
}

// Do implements Side.
func (k *Kernel) Do(s Step) (a Answer, err error) {
	if no := k.write("error_log", "", true); no != 0 {
		return a, fmt.Errorf("the kernel's error_log can not be cleared: %w", no)
	}
	switch s.Op {
	case OpEnable:
		k.used[s.Text] = true
		a.Errno = k.write("events/"+s.Text+"/enable", "1", true)
	case OpDisable:
		a.Errno = k.write("events/"+s.Text+"/enable", "0", true)
	default:
		a.Errno = k.write("kprobe_events", s.Text, s.Op == OpTruncate)
	}
	if a.Errno == 0 {
		return a, nil
	}
	log, err := k.Files.Read(k.Root + "/error_log")
	if err != nil {
		return a, err
	}
	a.Log, err = parseLog(log)
	for i := range a.Log {
		a.Log[i].Text = strings.Replace(a.Log[i].Text, "$-valiable", "$-variable", 1) // as Debian's 6.1.172 to 6.1.177 spell it
	}
	return a, err
}

func (k *Kernel) write(file, text string, trunc bool) syscall.Errno {
	return k.Files.Write(k.Root+"/"+file, text, trunc)
}

// Listing implements Side.
func (k *Kernel) Listing() (string, error) { return k.Files.Read(k.Root + "/kprobe_events") }

// Format implements Side.
func (k *Kernel) Format(group, name string) (string, error) {
	return k.Files.Read(k.Root + "/events/" + group + "/" + name + "/format")
}

// Record implements Side.
func (k *Kernel) Record(on bool) error {
	text := "0"
	if on {
		text = "1"
	}
	if no := k.write("tracing_on", text, true); no != 0 {
		return fmt.Errorf("the kernel's tracing_on: %w", no)
	}
	k.quiet = !on
	return nil
}

// Look implements Side.
func (k *Kernel) Look() (string, error) { return k.Files.Read(k.Root + "/trace") }

// Trace implements Side.
func (k *Kernel) Trace() (string, error) {
	s, err := k.Look()
	if no := k.write("trace", "", true); err == nil && no != 0 {
		err = fmt.Errorf("the kernel's trace can not be cleared: %w", no)
	}
	return s, err
}

// Ours is our side.
type Ours struct {
	Instance *trace.Instance
}

// Reset implements Side.
func (o *Ours) Reset() error {
	if err := o.Instance.Enable("", "", false); err != nil {
		return err
	}
	return o.Instance.Replace("")
}

// Do implements Side.
func (o *Ours) Do(s Step) (a Answer, err error) {
	o.Instance.ClearErrorLog()
	group, name, _ := strings.Cut(s.Text, "/")
	switch s.Op {
	case OpEnable:
		err = o.Instance.Enable(group, name, true)
	case OpDisable:
		err = o.Instance.Enable(group, name, false)
	case OpTruncate:
		err = o.Instance.Replace(s.Text)
	default:
		err = o.Instance.Write(s.Text)
	}
	if err == nil {
		return a, nil
	}
	if a.Errno = errnoOf(err); a.Errno == 0 {
		return a, err
	}
	a.Log, err = parseLog(o.Instance.ErrorLog())
	return a, err
}

// errnoOf is the errno that a write to a file would return for our error: the cause's, or
// the one of the error's code; 0 if it has none.
func errnoOf(err error) syscall.Errno {
	var no syscall.Errno
	var e *event.Error
	if !errors.As(err, &no) && errors.As(err, &e) {
		return e.Errno()
	}
	return no
}

// Listing implements Side.
func (o *Ours) Listing() (string, error) {
	var b strings.Builder
	err := o.Instance.WriteDefinitions(&b)
	return b.String(), err
}

// Format implements Side.
func (o *Ours) Format(group, name string) (string, error) { return o.Instance.Format(group, name) }

// Record implements Side.
func (o *Ours) Record(on bool) error {
	o.Instance.SetTracing(on)
	return nil
}

// Look implements Side.
func (o *Ours) Look() (string, error) {
	var b strings.Builder
	err := o.Instance.WriteTrace(&b)
	return b.String(), err
}

// Trace implements Side.
func (o *Ours) Trace() (string, error) {
	s, err := o.Look()
	o.Instance.Clear()
	return s, err
}

const logCommand = "  Command: "

var logHead = regexp.MustCompile(`^\[ *(\d+)\.(\d{6})\] trace_kprobe: error: (.*)$`)

// parseLog reads an error_log, and is strict about its form (tracing_log_err of kernel/trace/trace.c).
func parseLog(log string) (out []LogEntry, err error) {
	for log != "" {
		head, rest, _ := strings.Cut(log, "\n")
		cmd, rest, _ := strings.Cut(rest, "\n")
		caret, rest, end := strings.Cut(rest, "\n")
		m := logHead.FindStringSubmatch(head)
		col := len(caret) - 1 - len(logCommand)
		if m == nil || !strings.HasPrefix(cmd, logCommand) || col < 0 || !end || strings.TrimLeft(caret, " ") != "^" {
			return nil, fmt.Errorf("an entry of error_log of another form: %s", strconv.Quote(log))
		}
		out = append(out, LogEntry{Text: m[3], Command: cmd[len(logCommand):], Column: col})
		log = rest
	}
	return out, nil
}
