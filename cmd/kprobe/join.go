package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/target/process"
)

// elsewhere runs the command line in the process that holds another one, which is started if nobody does and start says so. ok is false if
// it is to be run here: the process can not be had, is held by one that serves nobody, or by nobody.
func (c *console) elsewhere(pid int, start bool) (ok bool, err error) {
	end := c.catchEnd(func() {})
	r, err := c.request(pid)
	if err != nil {
		end.release()
		return false, nil // it is told where the process is opened
	}
	for {
		client, err := findHolder(pid, start)
		if client == nil || err != nil {
			end.release()
			return false, err
		}
		status, err := client.Run(r, end.asked, end.release)
		switch {
		case errors.Is(err, holder.ErrEnding):
			if err := holder.Wait(client.PID); err != nil {
				return true, err
			}
			continue
		case err != nil:
			return true, fmt.Errorf("process %d: %w", pid, err)
		case status != 0:
			return true, statusError(status)
		}
		return true, nil
	}
}

// findHolder connects to the process that holds another one, or starts one that will. nil: it serves nobody, nobody holds it and none is to
// be started, or the process can not be looked at: that error is told where the process is opened.
func findHolder(pid int, start bool) (*holder.Client, error) {
	for {
		h, err := holderOf(pid)
		switch {
		case err != nil || h != nil && h.PID == pid:
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
		if now, err := holderOf(pid); err != nil || now != nil && now.Same(*h) {
			return nil, nil
		} // it has ended meanwhile
	}
}

func holderOf(pid int) (*procfs.Holder, error) {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return nil, err
	}
	h, err := p.Holder()
	return h, errors.Join(err, p.Close())
}

// request makes the request that has this command line run.
func (c *console) request(pid int) (r *holder.Request, err error) {
	r = &holder.Request{Args: c.args, Files: holder.Files{Out: c.stdout, Err: c.stderr}}
	if r.Files.Dir, err = os.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	r.Files.Root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		r.Files.Proof, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	}
	return r, err
}
