// Package ptrace reaches into another live process on Linux: it reads and writes its memory, stops its threads for a
// moment, lets one of them make system calls, and lets all go on. It knows no probe.
//
//	p, err := ptrace.Open(pid)             // checks; the process does not notice
//	defer p.Close()
//	s, err := p.Stop(nil)                  // every thread stopped
//	addr, err := s.Mmap(0, 1<<16, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
//	err = p.WriteMem(addr, code)
//	err = s.Release()                      // all run on, nobody stays attached
//
// # Who lives longer
//
// The tracer may be killed between any two instructions, and the target lives on as if
// nothing had been asked of it. Three rules see to that.
//
//   - Attaching is PTRACE_SEIZE, and a stop is PTRACE_INTERRUPT: when the tracer ends, the
//     kernel detaches and the threads go on. No signal is ever taken from a thread's queue
//     by a wait (WNOWAIT), so none is lost with us.
//   - A thread that is made to call the system has, before the one register write that
//     sends it there, a complete signal frame waiting above its stack pointer, and returns
//     from the call through rt_sigreturn into what it was doing. While we live we put the
//     registers back ourselves and the frame is never used.
//   - A thread's signal mask is changed only between that register write and its undoing,
//     when the frame would restore the mask.
//
// # What a stop does to a system call
//
// Most system calls that a stop cuts short are taken up again by the kernel, with the time
// that was left. Some return EINTR instead (signal(7), "Interruption of system calls and
// library functions by stop signals"): epoll_wait, semop, io_getevents, rt_sigtimedwait and
// sockets with a timeout. Where our stop is the cause, that is where no signal is pending
// for the thread, it makes the call again. Its timeout then begins anew, since nobody
// knows how much of it was used. The same holds for every call with a timeout if the tracer
// dies while that very thread was making a call for us.
//
// # Threads and locks
//
// All ptrace requests of one stop come from one operating system thread of the tracer,
// which belongs to the Stopped value and ends with it. Process is safe for use by several
// goroutines. Stopped is not, and only one can exist for a process at a time. Between
// Stop and Release a caller must wait for nothing that the stopped process may hold up: its pipes, its
// files, a file system that it serves.
//
// The layout of the signal frame and the seccomp filters are computed on any system. What touches a process is in files
// that end in _linux.go, and what knows registers, signal frames and instructions in files that end in _linux_amd64.go.
package ptrace
