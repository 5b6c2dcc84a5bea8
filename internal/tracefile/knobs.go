package tracefile

import (
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/trace"
)

// setTracing takes a number, which is not 0 where tracing is to be on (rb_simple_write, Linux 6.18).
func (t *Tree) setTracing(text string) error {
	n, err := number(text)
	if err != nil {
		return errno.Errorf(unix.EINVAL, "%.40q: 0 or 1 is taken", text)
	}
	t.in.SetTracing(n != 0)
	return nil
}

func (t *Tree) setEnabled(text string) error {
	on, err := boolean(text)
	if err != nil {
		return err
	}
	return t.in.Core().SetEnabled(on)
}

func (t *Tree) setOptimization(text string) error {
	on, err := flag(strings.TrimSpace(text)) // sysctls take spaces
	if err != nil {
		return err
	}
	return t.in.Core().SetOptimization(on)
}

// number reads what the kernel's kstrtoul takes for a decimal number: digits, a + before them, a line feed behind.
func number(text string) (uint64, error) {
	digits := strings.TrimPrefix(strings.TrimSuffix(text, "\n"), "+")
	return strconv.ParseUint(digits, 10, 64)
}

// boolean reads what the kernel's kstrtobool takes.
func boolean(text string) (bool, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	switch {
	case s == "":
	case strings.ContainsRune("1yt", rune(s[0])), strings.HasPrefix(s, "on"):
		return true, nil
	case strings.ContainsRune("0nf", rune(s[0])), strings.HasPrefix(s, "of"):
		return false, nil
	}
	return false, errno.Errorf(unix.EINVAL, "%.40q: 1, y, t, on, 0, n, f or off is taken", text)
}

// options are the lines of trace_options: each option, with no before one that is off.
func (t *Tree) options() (string, error) {
	var b strings.Builder
	for _, o := range t.in.Options() {
		on, err := t.in.Option(o)
		if err != nil {
			return "", err
		}
		if !on {
			b.WriteString("no")
		}
		b.WriteString(string(o) + "\n")
	}
	return b.String(), nil
}

// setOptions takes the name of an option, with no before it to switch it off.
func (t *Tree) setOptions(text string) error {
	name := strings.TrimSpace(text)
	off, no := strings.CutPrefix(name, "no")
	if no {
		return t.in.SetOption(trace.Option(off), false)
	}
	return t.in.SetOption(trace.Option(name), true)
}

// option is the file of an option.
func (t *Tree) option(name string) (*File, error) {
	o := trace.Option(name)
	if !t.in.HasOptionFile(o) {
		return nil, noFile("options/" + name)
	}
	return &File{
		Mode: readWrite,
		read: func() (string, error) {
			on, err := t.in.Option(o)
			return digit(on), err
		},
		write: func(text string) error {
			on, err := flag(text)
			if err != nil {
				return err
			}
			return t.in.SetOption(o, on)
		},
	}, nil
}

// pids is the file of the threads whose hits are recorded, or are not.
func (t *Tree) pids(not bool) *File {
	return &File{
		Mode: readWrite,
		read: func() (string, error) {
			var b strings.Builder
			for _, tid := range t.in.PIDs(not) {
				b.WriteString(strconv.Itoa(tid) + "\n")
			}
			return b.String(), nil
		},
		write:    func(text string) error { return t.in.AddPIDs(text, not) },
		truncate: nothing(func() { t.in.ClearPIDs(not) }),
	}
}

// snapshot is the file of the snapshot: 1 takes one, 0 frees it, another number clears it.
func (t *Tree) snapshot() *File {
	return &File{Mode: readWrite, read: text(t.in.WriteSnapshot), write: func(text string) error {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 0, 64)
		switch {
		case err != nil:
			return errno.Errorf(unix.EINVAL, "%.40q: a number is taken", text)
		case n == 1:
			t.in.Snapshot()
		default:
			t.in.ClearSnapshot(n == 0)
		}
		return nil
	}}
}

// refused takes nothing.
func refused(string) error {
	return errno.Errorf(unix.EINVAL, "a snapshot is of all CPUs: write to the file snapshot of the instance")
}

// bufferSize is the file of the size of a CPU's buffer, or of each one's.
func (t *Tree) bufferSize(cpu int) *File {
	return &File{
		Mode: readWrite,
		read: func() (string, error) {
			n := t.in.BufferSize(cpu)
			if n == 0 {
				return "X\n", nil
			}
			return strconv.Itoa(n>>10) + "\n", nil
		},
		write: func(text string) error {
			kb, err := strconv.ParseUint(strings.TrimSpace(text), 0, 64)
			switch {
			case err != nil || kb == 0:
				return errno.Errorf(unix.EINVAL, "%.40q: a number of KiB is taken", text)
			case kb > math.MaxInt>>10:
				return errno.Errorf(unix.ENOMEM, "%d KiB: there is no such memory", kb)
			}
			return t.in.SetBufferSize(cpu, int(kb)<<10)
		},
	}
}

// bufferPercent is the file of how full a CPU's buffer is before poll(2) tells of it.
func (t *Tree) bufferPercent() *File {
	return decimal(t.in.BufferPercent, t.in.SetBufferPercent)
}

// comms is the file of how many threads' names are kept.
func (t *Tree) comms() *File { return decimal(t.in.Comms, t.in.SetComms) }

// decimal is the file of a number.
func decimal(get func() int, set func(int) error) *File {
	return &File{
		Mode: readWrite,
		read: func() (string, error) { return strconv.Itoa(get()) + "\n", nil },
		write: func(text string) error {
			n, err := number(text)
			if err != nil || n > math.MaxInt32 {
				return errno.Errorf(unix.EINVAL, "%.40q: a number is taken", text)
			}
			return set(int(n))
		},
	}
}

// totalSize is the sum of the sizes of all CPUs' buffers.
func (t *Tree) totalSize() (string, error) {
	n := 0
	for cpu := range t.in.CPUs() {
		n += t.in.BufferSize(cpu) >> 10
	}
	return strconv.Itoa(n) + "\n", nil
}
