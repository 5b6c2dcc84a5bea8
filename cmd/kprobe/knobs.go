package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/guest/qemu"
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
	use, short, does := "enable", "arm the probes of a process or a kernel again", "Arms all probes of a process, of a guest, or of the kernel that runs here, which kprobe disable has disarmed: kprobes/enabled."
	if !on {
		use, short, does = "disable", "disarm the probes of a process or a kernel", "Disarms all probes of a process, of a guest, or of the kernel that runs here, whoever has put them there, until kprobe enable: kprobes/enabled."
	}
	c := &cobra.Command{
		Use: use + " (-p PID | -k | --guest SPEC)", Short: short, Long: does, Args: noArgs,
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
		Use: "optimization on|off (-p PID | -k | --guest SPEC)", Short: "let the probes of a process or a kernel be jumps, or not",
		Long: "Says whether the probes of a process, of a guest, or of the kernel that runs here, may be jumps: debug.kprobes-optimization. With off they become breakpoints.",
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

// turn turns a knob: of the kernel that runs here its file, of a process or a guest in whoever holds it.
func (k *knob) turn(file string, on bool, set func(*kprobes.Core) error) error {
	switch err := k.of.need(); {
	case err != nil:
		return err
	case k.of.kernel:
		return writeKnob(file, on)
	case k.con.host == nil:
		if ok, err := k.con.elsewhere(&k.of, false); ok || err != nil {
			return err
		}
		return k.noUser()
	}
	u, err := k.con.host.join(asked{con: k.con, of: &k.of}, nil)
	if err != nil {
		return err
	}
	return errors.Join(set(u.core), u.Leave(nil), u.Close())
}

// noUser says that a target has no probes of others, or of one that serves nobody.
func (k *knob) noUser() error {
	h, err := k.con.holderOf(&k.of)
	switch {
	case err != nil:
		return err
	case h == nil:
		return fmt.Errorf("%s: nobody uses it: kprobe trace, stat, hist, record, spans, mount or insmod does", k.of.name())
	case k.of.guest != "":
		return fmt.Errorf("%s, held by %v: %w", k.of.name(), h, qemu.ErrHeld)
	}
	return &process.HeldError{PID: k.of.pid, Holder: *h}
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
