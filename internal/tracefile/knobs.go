package tracefile

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
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
