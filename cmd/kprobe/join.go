package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/target/guest/qemu"
	"kprobes.dev/kprobes/target/process"
)

// elsewhere runs the command line in the process that holds a process or a guest, which is started if nobody does and start says so. ok is
// false if it is to be run here: the target can not be had, is held by one that serves nobody, or by nobody.
func (c *console) elsewhere(of *subject, start bool) (ok bool, err error) {
	end := c.catchEnd(func() {})
	r, err := c.request(of)
	if err != nil {
		end.release()
		return false, nil // it is told where the target is opened
	}
	for {
		client, err := c.findHolder(of, start)
		if client == nil || err != nil {
			end.release()
			return false, err
		}
		status, err := client.Run(r, end.asked, holder.Notes{Out: end.release})
		switch {
		case errors.Is(err, holder.ErrEnding):
			if err := holder.Wait(client.PID); err != nil {
				return true, err
			}
			continue
		case err != nil:
			return true, fmt.Errorf("%s: %w", of.name(), err)
		case status != 0:
			return true, statusError(status)
		}
		return true, nil
	}
}

// startElsewhere starts a program, and runs the command line in a process that holds it before it runs. A program that was not let go is
// killed.
func (c *console) startElsewhere(cmd []string) error {
	end := c.catchEnd(func() {})
	p, st, err := process.Start(&process.Command{Path: cmd[0], Args: cmd[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer p.Close()
	begun := false
	status, err := c.handOver(p, st, end, holder.Notes{Begun: func() { begun = true }, Out: end.release})
	if err != nil {
		err = fmt.Errorf("process %d: %w", p.PID(), err)
	}
	if status != 0 {
		err = errors.Join(err, statusError(status))
	}
	if !begun {
		_ = p.Signal(unix.SIGKILL) // or the kernel has done so, since the holder has ended
	}
	return errors.Join(err, waitStatus(p))
}

// handOver has a holder attach to a program that this process has started, and run the command line.
func (c *console) handOver(p *process.Proc, st *process.Stopped, end *ending, notes holder.Notes) (status int, err error) {
	client, err := holder.Start("/proc/self/exe", "hold")
	if err != nil {
		return 0, err
	}
	end.leaveKeys()
	// Where Yama lets parents only trace their children the program lets the holder do so (prctl(2)), elsewhere there is no such call.
	_, _ = st.Call(unix.SYS_PRCTL, unix.PR_SET_PTRACER, uint64(client.PID))
	if err = st.ReleaseStopped(); err != nil {
		return 0, errors.Join(err, client.Close())
	}
	r, err := c.request(&subject{pid: p.PID()})
	if err != nil {
		return 0, errors.Join(err, client.Close())
	}
	r.Program = p.PID()
	return client.Run(r, end.asked, notes)
}

// findHolder connects to the process that holds a target, or starts one that will. nil: it serves nobody, nobody holds it and none is to
// be started, or the target can not be looked at: that error is told where it is opened.
func (c *console) findHolder(of *subject, start bool) (*holder.Client, error) {
	for {
		h, err := c.holderOf(of)
		switch {
		case err != nil || h != nil && h.PID == of.pid:
			return nil, nil
		case h == nil && !start:
			return nil, nil
		case h == nil:
			return holder.Start("/proc/self/exe", "hold")
		}
		client, err := holder.Dial(h)
		if !errors.Is(err, holder.ErrNone) {
			return client, err
		}
		if now, err := c.holderOf(of); err != nil || now != nil && now.Same(*h) {
			return nil, nil
		} // it has ended meanwhile
	}
}

// holderOf tells who holds a target; nil: nobody that is seen from here.
func (c *console) holderOf(of *subject) (*procfs.Holder, error) {
	if of.guest != "" {
		spec, err := c.guestSpec(of.guest)
		if err != nil {
			return nil, err
		}
		return qemu.Holder(spec)
	}
	p, err := process.OpenUnwaited(of.pid)
	if err != nil {
		return nil, err
	}
	h, err := p.Holder()
	return h, errors.Join(err, p.Close())
}

// memoryOf is the file that shows who opens it to have the right to trace a target.
func (c *console) memoryOf(of *subject) (string, error) {
	if of.guest == "" {
		return fmt.Sprintf("/proc/%d/mem", of.pid), nil
	}
	spec, err := c.guestSpec(of.guest)
	return spec.Memory, err
}

// request makes the request that has this command line run.
func (c *console) request(of *subject) (r *holder.Request, err error) {
	r = &holder.Request{Args: c.args, Files: holder.Files{Out: c.stdout, Err: c.stderr}}
	if r.Files.Dir, err = os.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	if r.Files.Root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	if c.web != nil {
		token, err := c.web.token()
		if err != nil {
			return nil, err
		}
		r.HTTP = &holder.HTTP{Token: token, Hosts: c.web.hosts}
		if r.Files.Listener, err = c.web.listener.File(); err != nil {
			return nil, err
		}
	}
	mem, err := c.memoryOf(of)
	if err == nil {
		r.Files.Proof, err = os.OpenFile(mem, os.O_RDWR, 0)
	}
	return r, err
}
