package process

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel gives up the check of a program when a signal comes (EAGAIN), as they do for Go's
// scheduler all the time: the program is loaded nevertheless.
func TestProgramLoadsWhileSignalsCome(t *testing.T) {
	c := &bpfCode{}
	for range 4000 { // long enough for a signal to come in the middle
		c.op(bpfSet64, bpfResult, 0, 0, 1)
	}
	c.leave()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), unix.Gettid()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(pid, tid, unix.SIGURG)
			}
		}
	}()
	for range 100 {
		fd, err := c.load()
		if err != nil {
			t.Error(err)
			break
		}
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-done
}
