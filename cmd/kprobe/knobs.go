package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/process"
)

// The knobs of the kernel that runs here.
const (
	kernelEnabled      = "/sys/kernel/debug/kprobes/enabled"
	kernelBlacklist    = "/sys/kernel/debug/kprobes/blacklist"
	kernelOptimization = "/proc/sys/debug/kprobes-optimization"
)

// knob is a run of a verb that turns one.
type knob struct {
	con *console
	of  subject
}

func newEnable(con *console, on bool) *cobra.Command {
	k := &knob{con: con}
	use, short, does := "enable", "arm the probes of a process or a kernel again", "Arms all probes of a process, or of the kernel that runs here, which kprobe disable has disarmed: kprobes/enabled."
	if !on {
		use, short, does = "disable", "disarm the probes of a process or a kernel", "Disarms all probes of a process, or of the kernel that runs here, whoever has put them there, until kprobe enable: kprobes/enabled."
	}
	c := &cobra.Command{
		Use: use + " (-p PID | -k)", Short: short, Long: does, Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return k.turn(kernelEnabled, on, func(core *kprobes.Core) error { return core.SetEnabled(on) })
		},
	}
	k.of.flags(c)
	return c
}

func newOptimization(con *console) *cobra.Command {
	k := &knob{con: con}
	c := &cobra.Command{
		Use: "optimization on|off (-p PID | -k)", Short: "let the probes of a process or a kernel be jumps, or not",
		Long: "Says whether the probes of a process, or of the kernel that runs here, may be jumps: debug.kprobes-optimization. With off they become breakpoints.",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "on" && args[0] != "off" {
				return usagef("say on or off")
			}
			on := args[0] == "on"
			return k.turn(kernelOptimization, on, func(core *kprobes.Core) error { return core.SetOptimization(on) })
		},
	}
	k.of.flags(c)
	return c
}

// turn turns a knob: of the kernel that runs here its file, of a process in whoever holds it.
func (k *knob) turn(file string, on bool, set func(*kprobes.Core) error) error {
	switch err := k.of.need(); {
	case err != nil:
		return err
	case k.of.guest != "":
		return usagef("--guest: the knobs of a guest are files of kprobe mount: kprobes/enabled, sys/debug/kprobes-optimization")
	case k.of.kernel:
		return writeKnob(file, on)
	case k.con.host == nil:
		if ok, err := k.con.elsewhere(k.of.pid, false); ok || err != nil {
			return err
		}
		return noUser(k.of.pid)
	}
	u, err := k.con.host.join(asked{con: k.con, pid: k.of.pid}, nil)
	if err != nil {
		return err
	}
	return errors.Join(set(u.core), u.Leave(nil), u.Close())
}

// noUser says that a process has no probes of others, or of one that serves nobody.
func noUser(pid int) error {
	h, err := holderOf(pid)
	if err != nil {
		return err
	}
	if h != nil {
		return &process.HeldError{PID: pid, Holder: *h}
	}
	return fmt.Errorf("process %d: nobody uses it: kprobe trace, stat, hist, record or mount does", pid)
}

func writeKnob(file string, on bool) error {
	text := "0\n"
	if on {
		text = "1\n"
	}
	err := os.WriteFile(file, []byte(text), 0)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: this kernel has no kprobes, or debugfs is not mounted (mount -t debugfs nodev /sys/kernel/debug)", err)
	}
	return err
}

func newBlacklist() *cobra.Command {
	var s subject
	c := &cobra.Command{
		Use: "blacklist (-p PID | -k | --guest SPEC)", Short: "list the functions that no probe may stand in",
		Long: "Lists the functions of a process or a kernel that no probe may stand in, a line for each as in kprobes/blacklist: 0xSTART-0xEND, a tab, the name.", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch err := s.need(); {
			case err != nil:
				return err
			case s.kernel:
				return copyFile(stdout, kernelBlacklist)
			case s.guest != "":
				return blacklistGuest(s.guest)
			}
			return blacklist(s.pid)
		},
	}
	s.flags(c)
	return c
}

// blacklist looks at a process, whoever holds it.
func blacklist(pid int) error {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return err
	}
	t, err := process.Attach(p, nil)
	if err == nil {
		var core *kprobes.Core
		if core, err = kprobes.Open(t, nil); err == nil {
			err = core.Blacklist(stdout)
		}
	}
	return errors.Join(err, p.Close())
}

func blacklistGuest(spec string) error {
	m, t, err := attachGuest(spec, toRead)
	if err != nil {
		return err
	}
	core, err := kprobes.Open(t, nil)
	if err == nil {
		err = core.Blacklist(stdout)
	}
	return errors.Join(err, m.Close())
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: this kernel has no kprobes, or debugfs is not mounted (mount -t debugfs nodev /sys/kernel/debug)", err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
