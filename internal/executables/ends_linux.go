package executables

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ends tells of the ends of processes: one thread waits for all of them.
type ends struct {
	poll int // epoll(7) of pidfds
	wake int // eventfd(2): it is to end
	mu   sync.Mutex
	of   map[int32]*entry // by pidfd
	done chan struct{}
}

// newEnds begins to wait; ended is called by that goroutine.
func newEnds(ended func(*entry)) (*ends, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(poll))
	}
	e := &ends{poll: poll, wake: wake, of: map[int32]*entry{}, done: make(chan struct{})}
	go e.run(ended)
	return e, nil
}

// add waits for the end of an entry's process, which may have ended already.
func (e *ends) add(en *entry) error {
	fd, err := unix.PidfdOpen(en.pid, 0)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.of[int32(fd)] = en
	e.mu.Unlock()
	return unix.EpollCtl(e.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (e *ends) run(ended func(*entry)) {
	defer close(e.done)
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(e.poll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, ev := range events[:max(n, 0)] {
			if int(ev.Fd) == e.wake {
				return
			}
			e.mu.Lock()
			en := e.of[ev.Fd]
			delete(e.of, ev.Fd)
			e.mu.Unlock()
			_ = unix.Close(int(ev.Fd))
			ended(en)
		}
	}
}

// close ends the waiting.
func (e *ends) close() {
	_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-e.done
	for fd := range e.of {
		_ = unix.Close(int(fd))
	}
	_ = unix.Close(e.wake)
	_ = unix.Close(e.poll)
}
