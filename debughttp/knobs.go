package debughttp

import (
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/trace"
)

// list is kprobes/list: all probes of the target, those without an event too.
func list(c *call) error {
	return buffered(func(in *trace.Instance, w io.Writer) error { return in.List(w) })(c)
}

// blacklist is kprobes/blacklist.
func blacklist(c *call) error {
	return buffered(func(in *trace.Instance, w io.Writer) error { return in.Core().Blacklist(w) })(c)
}

// enabled is kprobes/enabled.
func enabled(c *call) error { return c.text(digit(c.in.Core().Enabled())) }

func setEnabled(c *call) error {
	on, err := c.boolean()
	if err != nil {
		return err
	}
	return c.in.Core().SetEnabled(on)
}

// optimization is the sysctl debug.kprobes-optimization.
func optimization(c *call) error { return c.text(digit(c.in.Core().Optimization())) }

func setOptimization(c *call) error {
	on, err := c.flag()
	if err != nil {
		return err
	}
	return c.in.Core().SetOptimization(on)
}

// boolean reads what the kernel's kstrtobool takes.
func (c *call) boolean() (bool, error) {
	s := strings.ToLower(strings.TrimSpace(c.body))
	switch {
	case s == "":
	case strings.ContainsRune("1yt", rune(s[0])), strings.HasPrefix(s, "on"):
		return true, nil
	case strings.ContainsRune("0nf", rune(s[0])), strings.HasPrefix(s, "of"):
		return false, nil
	}
	return false, errno.Errorf(unix.EINVAL, "%.40q: 1, y, t, on, 0, n, f or off is taken", c.body)
}
