package ptrace

import (
	"slices"
	"strconv"
	"strings"
)

// A thread that has called vfork waits in the kernel, uninterruptibly, until its child executes a
// program or ends. The child may be one that we hold: then the parent would never arrive. It need not:
// it was told to stop, so that it stops before it runs another instruction of the program, whenever
// the child lets it go. Such a thread is parked: where it will go on the kernel tells, it counts for
// whatever is asked of threads' places and stacks, and it is not to be moved or to make calls.
// (Other uninterruptible waits may hold the lock of the process's mappings, which we need.)

// parkSome parks those of the threads that can be, and gives the others. It asks a few at a time.
func (s *Stopped) parkSome(pending []*Thread) []*Thread {
	n := min(len(pending), askedAtOnce)
	left := slices.DeleteFunc(slices.Clone(pending[:n]), s.park)
	return append(slices.Clone(pending[n:]), left...) // others next time
}

// park says whether a thread that has not arrived can be parked.
func (s *Stopped) park(t *Thread) bool {
	text, err := procFile(t.g.dir, "task/"+strconv.Itoa(t.TID)+"/syscall")
	if err != nil {
		return false
	}
	c, ok := parseWait(text)
	if !ok || !s.vforks(c) || !s.waitsForChild(t) {
		return false
	}
	t.parked = true
	t.regs.waits(&c)
	s.parked = append(s.parked, t)
	return true
}

// wait is what a thread waits for in the kernel, as proc(5) syscall tells.
type wait struct {
	nr     uint64
	args   [6]uint64
	sp, pc uint64
}

// parseWait parses "NR ARG… SP PC"; false: the thread runs, or is in no system call.
func parseWait(text string) (w wait, ok bool) {
	f := strings.Fields(text)
	if len(f) != 9 {
		return w, false
	}
	var err error
	if w.nr, err = strconv.ParseUint(f[0], 10, 64); err != nil {
		return w, false
	}
	for i, to := range []*uint64{&w.args[0], &w.args[1], &w.args[2], &w.args[3], &w.args[4], &w.args[5], &w.sp, &w.pc} {
		if *to, err = strconv.ParseUint(strings.TrimPrefix(f[1+i], "0x"), 16, 64); err != nil {
			return w, false
		}
	}
	return w, true
}

// vforkWaits are the kernel's functions in which a thread waits for its vfork child, as proc(5) wchan
// names them (kernel/fork.c, wait_for_vfork_done).
var vforkWaits = []string{"kernel_clone", "wait_for_vfork_done", "_do_fork", "do_fork"}

// waitsForChild says whether a thread sleeps uninterruptibly in one of these.
func (s *Stopped) waitsForChild(t *Thread) bool {
	st, err := t.Status()
	if err != nil || st.State != "D" {
		return false
	}
	w, err := procFile(t.g.dir, "task/"+strconv.Itoa(t.TID)+"/wchan")
	return err == nil && slices.Contains(vforkWaits, w)
}

// unpark takes those of the parked threads whose children have let them go: they are released like
// the others. The rest goes on by itself when the tracer's end detaches it.
func (s *Stopped) unpark() {
	for _, t := range s.parked {
		if done, err := t.arrive(); err == nil && done && t.stopped {
			s.threads = append(s.threads, t)
		}
	}
	s.parked = nil
}
