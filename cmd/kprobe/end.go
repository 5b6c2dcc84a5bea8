package main

import (
	"context"
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
)

// endSignals are the signals that end what this command does. The kernel's default for each would
// leave the probes in the target.
func endSignals() []os.Signal {
	s := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGABRT, unix.SIGXCPU}
	if !signal.Ignored(unix.SIGHUP) { // as nohup has it
		s = append(s, unix.SIGHUP)
	}
	return s
}

// untilEnd gives a context that ends at the first such signal, and when nobody reads stdout or
// stderr any more.
func untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, endSignals()...)
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, unix.SIGPIPE)
	go endUnread(ctx, pipes, []*os.File{os.Stdout, os.Stderr}, stop)
	return ctx, stop
}

// endUnread calls end at the first SIGPIPE that finds one of the outputs without a reader. A write
// to anything else that has gone, such as the socket of a QEMU that has ended, gives its error to
// the writer, who knows what it means.
func endUnread(ctx context.Context, pipes <-chan os.Signal, outs []*os.File, end func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-pipes:
			if unread(outs) {
				end()
				return
			}
		}
	}
}

// unread says whether one of the outputs is a pipe or a socket that nobody reads.
func unread(outs []*os.File) bool {
	fds := make([]unix.PollFd, len(outs))
	for i, f := range outs {
		fds[i].Fd = int32(f.Fd())
	}
	if _, err := unix.Poll(fds, 0); err != nil {
		return false
	}
	// Both are told without being asked for (poll(2)).
	return slices.ContainsFunc(fds, func(p unix.PollFd) bool { return p.Revents&(unix.POLLERR|unix.POLLHUP) != 0 })
}

// ending is how a trace is ended from outside: by a signal.
type ending struct {
	asked   <-chan struct{} // closed at the first signal
	signals chan os.Signal
	caught  []os.Signal
	of      *holder.Session // whose client catches the signals; nil: this process does
}

// catchEnd catches the signals that end a trace, and calls asked at the first one. A write to
// an output without a reader gives an error from now on, and no signal. Programs that are
// started later have the default for all of them.
func (c *console) catchEnd(asked func()) *ending {
	ended := make(chan struct{})
	e := &ending{asked: ended, signals: make(chan os.Signal, 1), of: c.of}
	if e.of != nil {
		go func() {
			select {
			case <-e.of.Ended:
			case <-c.host.stop:
			}
			asked()
			close(ended)
		}()
		return e
	}
	e.caught = endSignals()
	signal.Notify(e.signals, e.caught...)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	go func() {
		<-e.signals
		asked()
		close(ended)
	}()
	return e
}

// leaveKeys leaves the signals of the terminal's keys to a program that was started, which is
// in our process group: what it does at them is its own business, and the trace goes on.
func (e *ending) leaveKeys() {
	if e.of == nil {
		signal.Ignore(unix.SIGINT, unix.SIGQUIT)
	}
}

// release has the next signal end the command at once: all probes are out.
func (e *ending) release() {
	if e.of != nil {
		e.of.Out()
		return
	}
	for _, s := range e.caught {
		if !signal.Ignored(s) {
			signal.Reset(s)
		}
	}
}
