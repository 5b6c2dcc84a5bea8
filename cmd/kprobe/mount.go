package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/target/process"
	"kprobes.dev/kprobes/trace"
	"kprobes.dev/kprobes/tracefs"
)

const mountHelp = `Mount the files of tracefs for a running process, a program that is started for it, or the
kernel of a QEMU guest: kprobe_events, events/…, trace, trace_pipe and the others, and
kprobes/{list,enabled,blacklist} and sys/debug/kprobes-optimization. They work as in a
kernel: see Documentation/trace/kprobetrace.rst.

  kprobe mount -p PID /tmp/t &
  echo 'p:look lookupKey db=%di' >> /tmp/t/kprobe_events
  echo 1 > /tmp/t/events/kprobes/look/enable
  cat /tmp/t/trace_pipe
  umount /tmp/t

The files are there until DIR is unmounted, the target ends, or this command is told to end
(Ctrl-C); then all probes are taken out.`

// mounting is a run of the verb mount.
type mounting struct {
	con   *console
	of    subject
	keep  int // bytes of each CPU
	alone bool
}

func newMount(con *console) *cobra.Command {
	m := mounting{con: con}
	c := &cobra.Command{
		Use:   "mount (-p PID | --guest SPEC) DIR | mount DIR -- CMD ARGS…",
		Short: "mount the files of tracefs for a process or a guest",
		Long:  mountHelp,
		RunE: func(c *cobra.Command, args []string) error {
			dirs, cmd := atDash(c, args)
			if len(dirs) != 1 {
				return usagef("give one DIR to mount the files at, before --")
			}
			return m.run(dirs[0], cmd)
		},
	}
	m.of.flags(c)
	c.Flags().BoolVar(&m.alone, "alone", false, "hold the target in this command: nobody else can use it meanwhile, and when the command is killed the probes stay")
	c.Flags().IntVar(&m.keep, "keep", trace.DefaultBuffer, "bytes of records that trace and trace_pipe keep of each CPU")
	return c
}

// run is the verb.
func (m *mounting) run(dir string, cmd []string) error {
	if err := m.check(cmd); err != nil {
		return err
	}
	if m.con.host == nil && !m.alone {
		if len(cmd) > 0 {
			return m.con.startElsewhere(cmd)
		}
		if ok, err := m.con.elsewhere(&m.of, true); ok || err != nil {
			return err
		}
	}
	dir, err := m.con.mountPoint(dir)
	if err != nil {
		return err
	}
	end := m.con.catchEnd(func() {})
	o := &trace.Options{BufferSize: m.keep}
	s, err := m.open(cmd, o)
	if err != nil {
		return err
	}
	o.Comm = s.Names().Comm
	if len(cmd) > 0 {
		end.leaveKeys()
	}
	in := trace.New(s.Core(), o)
	mounted, err := tracefs.Mount(in, dir, &tracefs.Options{Target: m.name(s), Busy: m.busy(s)})
	if err != nil {
		return errors.Join(err, in.Close(), s.Leave(nil), s.Close())
	}
	if err = s.Run(); err == nil {
		fmt.Fprintf(m.con.stderr, "kprobe: %s: the files are at %s until you unmount them (umount %s), or end this command\n", m.name(s), dir, dir)
		err = watch(s, mounted, end, &teller{w: m.con.stderr})
	}
	err = errors.Join(err, mounted.Close(), in.Close(), s.Leave(nil))
	end.release()
	return errors.Join(err, s.Status(), s.Close())
}

func (m *mounting) check(cmd []string) error {
	one, err := m.of.named()
	switch {
	case err != nil:
		return err
	case m.of.kernel:
		return usagef("-k: the kernel has files of its own: mount -t tracefs nodev /sys/kernel/tracing")
	case !one && len(cmd) == 0:
		return usagef("give what to probe: -p PID, --guest SPEC, or -- CMD ARGS")
	case one && len(cmd) > 0:
		return usagef("-p, --guest and -- CMD exclude each other")
	}
	return nil
}

func (m *mounting) open(cmd []string, o *trace.Options) (mountable, error) {
	if m.con.host != nil {
		hits := new(pending)
		u, err := m.con.host.join(asked{con: m.con, of: &m.of}, hits.add)
		if err != nil {
			return nil, err
		}
		o.Shared = mountUser{u, hits}
		return u, nil
	}
	if m.of.guest != "" {
		spec, err := m.con.guestSpec(m.of.guest)
		if err != nil {
			return nil, err
		}
		return openGuest(spec)
	}
	return openProcess(m.of.pid, cmd, 0, false, process.TextDefault)
}

// name says what is traced.
func (m *mounting) name(s mountable) string {
	if p := processOf(s); p != nil {
		return fmt.Sprintf("process %d", p.s.proc.PID())
	}
	return m.of.name()
}

// processOf is the process that is traced; nil: it is a guest.
func processOf(s mountable) *tracedProcess {
	if u, ok := s.(*user); ok {
		s = u.h.base
	}
	p, _ := s.(*tracedProcess)
	return p
}

// unmountDead unmounts the files that killed tracers of a target have left.
func unmountDead(target string) error {
	dirs, err := tracefs.Dead(target)
	for _, dir := range dirs {
		if bad := tracefs.Unmount(dir); bad != nil {
			err = errors.Join(err, bad)
		} else {
			fmt.Fprintf(os.Stderr, "kprobe: %s: unmounted %s, whose kprobe was killed\n", target, dir)
		}
	}
	return err
}

// busy tells threads of the target itself.
func (m *mounting) busy(s mountable) func(tid int) bool {
	p := processOf(s)
	if p == nil {
		return nil
	}
	return func(tid int) bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", p.s.proc.PID(), tid))
		return err == nil
	}
}

// lookEvery is how often the target is looked at: whether it is still there.
const lookEvery = 250 * time.Millisecond

// teller tells what went wrong, once where the same goes wrong again and again.
type teller struct {
	w    io.Writer
	last string
}

func (t *teller) tell(err error) {
	if err == nil || errors.Is(err, process.ErrBlocked) || err.Error() == t.last {
		return
	}
	t.last = err.Error()
	fmt.Fprintf(t.w, "kprobe: %v\n", err)
}

// watch waits until the files are unmounted, the target has ended, or somebody asks for the end.
func watch(s tracee, m *tracefs.Mounted, end *ending, errs *teller) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-m.Done():
			return m.Wait()
		case <-end.asked:
			return nil
		case <-s.Exited():
			return nil
		case <-look.C:
			ended, err := s.Sync()
			if ended {
				return err
			}
			errs.tell(err)
		}
	}
}
