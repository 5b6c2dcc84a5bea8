package executables

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/target/process"
)

// tree is the processes of a command, as where new ones come from.
type tree struct {
	*process.Tree
	begun bool
	over  chan struct{} // closed when the command has ended
	// What follows is set then.
	status unix.WaitStatus
	err    error
}

// start starts the command of the options, which waits for Begin.
func (s *Set) start() error {
	s.privileged = checkPtrace() == nil
	t, err := process.StartTree(s.o.Command, &process.TreeOptions{Takes: s.takesNew, Met: s.metNew, Loaders: &s.loaders})
	if err == nil {
		s.tree = &tree{Tree: t, over: make(chan struct{})}
	}
	return err
}

// takesNew says whether a process that has executed a program is one of the set.
func (s *Set) takesNew(pid int) bool {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if !closed && !s.privileged {
		s.unprivileged(pid)
	}
	return !closed && s.o.File.Runs(pid) && s.takes(pid)
}

// unprivileged tells of a process that would run with the rights of its file if it was not traced.
func (s *Set) unprivileged(pid int) {
	exe := "/proc/" + strconv.Itoa(pid) + "/exe"
	var st unix.Stat_t
	if unix.Stat(exe, &st) != nil {
		return
	}
	n, err := unix.Getxattr(exe, "security.capability", nil)
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 && (err != nil || n == 0) {
		return
	}
	name, _ := os.Readlink(exe)
	s.o.Refused(0, fmt.Errorf("%s runs without the rights that its file gives, since what the command starts is traced: run kprobe as root, or with CAP_SYS_PTRACE", name))
}

// metNew takes a process of the command's before its first instruction.
func (s *Set) metNew(pid int, m process.Met, err error) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.arms.Add(1) // Close waits
	}
	s.mu.Unlock()
	if closed {
		if err == nil {
			_ = m.Stopped.Release()
			_ = m.Proc.Close()
		}
		return
	}
	defer s.arms.Done()
	s.took(pid, m, err)
}

// Begin lets the command of the options begin. It is called once.
func (s *Set) Begin() {
	if s.tree == nil {
		return
	}
	s.tree.begun = true
	go func() {
		defer close(s.tree.over)
		s.tree.status, s.tree.err = s.tree.Run()
	}()
}

// Ended is closed when the command has ended; nil: there is none.
func (s *Set) Ended() <-chan struct{} {
	if s.tree == nil {
		return nil
	}
	return s.tree.over
}

// Status waits for the command, and gives its status.
func (s *Set) Status() (unix.WaitStatus, error) {
	<-s.tree.over
	return s.tree.status, s.tree.err
}
