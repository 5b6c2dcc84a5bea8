package tracefs

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"

	"bazil.org/fuse"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/tracefile"
)

// handle is an open file.
type handle struct {
	f      *filesystem
	n      *node
	h      *tracefile.Handle
	waking atomic.Bool // a goroutine waits for something to read, to wake who polls
	closed chan struct{}
}

// Read answers read(2). A signal ends it where it waits. The target's own threads get no answer: a change of
// the target, which others may be waiting for, would have to wait for them. What is read for the page cache (sendfile(2), splice(2), mmap(2)) comes
// without a lock owner, and read(2)'s with one (fuse_read_folio and fuse_direct_io, Linux 6.18): see tracefile.Handle.Page. Who is refused calls
// read(2) then.
func (h *handle) Read(ctx context.Context, req *fuse.ReadRequest, resp *fuse.ReadResponse) error {
	if err := h.f.refused(req.Pid); err != nil {
		return err
	}
	var b []byte
	var err error
	if cached := req.Flags&fuse.ReadLockOwner == 0; cached {
		if h.n.opened.Load() > 1 { // the cache is the node's: one would get the other's pages
			return syscall.EINVAL
		}
		b, err = h.h.Page(req.Offset, req.Size)
	} else {
		b, err = h.h.Read(ctx, req.Offset, req.Size, req.FileFlags&fuse.OpenNonblock == 0)
	}
	switch {
	case h.f.gone.Load(): // it has waited until now
		return syscall.ENODEV
	case err != nil:
		return failed(err)
	}
	resp.Data = b
	return nil
}

// Write answers write(2). The target's own threads can not change it: they would have to stand still, and wait here.
func (h *handle) Write(_ context.Context, req *fuse.WriteRequest, resp *fuse.WriteResponse) error {
	if err := h.f.refused(req.Pid); err != nil {
		return err
	}
	n, err := h.h.Write(int(req.Pid), string(req.Data))
	if err != nil {
		return failed(err)
	}
	resp.Size = n
	return nil
}

// Release answers the last close(2).
func (h *handle) Release(context.Context, *fuse.ReleaseRequest) error {
	h.n.opened.Add(-1)
	close(h.closed)
	h.h.Close()
	return nil
}

// Poll answers poll(2), and wakes who waits when there is something to read.
func (h *handle) Poll(_ context.Context, req *fuse.PollRequest, resp *fuse.PollResponse) error {
	resp.REvents = req.Events & fuse.PollOut
	ready, more := h.h.Ready()
	if ready {
		resp.REvents |= req.Events & fuse.PollIn
		return nil
	}
	if w, ok := req.Wakeup(); ok && !h.waking.Swap(true) {
		go func() {
			select {
			case <-h.closed:
				return
			case <-more:
			}
			h.waking.Store(false)
			_ = h.f.server.NotifyPollWakeup(w) // who waited may be gone
		}()
	}
	return nil
}

// numbers are the error numbers that reach programs, the most telling first.
var numbers = []syscall.Errno{
	unix.EAGAIN, unix.EBUSY, unix.EEXIST, unix.ENODEV, unix.ENOENT, unix.E2BIG, unix.ENOSPC, unix.ENOTDIR, unix.EOPNOTSUPP, unix.EILSEQ,
	unix.EPERM, unix.EACCES, unix.ENAMETOOLONG, unix.ESHUTDOWN, unix.ESRCH, unix.ENOMEM, unix.EBADF, unix.EOVERFLOW, unix.ELOOP, unix.EINVAL,
}

// failed is the error number that an error answers to.
func failed(err error) error {
	if errors.Is(err, context.Canceled) {
		return syscall.EINTR
	}
	for _, no := range numbers {
		if errors.Is(err, no) {
			return no
		}
	}
	return unix.EIO
}
