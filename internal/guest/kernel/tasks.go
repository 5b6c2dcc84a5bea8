package kernel

import (
	"cmp"
	"math/bits"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// maxTasks bounds a walk over the threads (the kernel's own limit is 4 million).
const maxTasks = 1 << 20

// Task is a thread of the guest, or the idle thread of a CPU (PID 0).
type Task struct {
	Addr      uint64 // its struct task_struct
	PID, TGID int
	Comm      string
	Stack     interval.Range // its kernel stack; empty for one that has exited
	SP        uint64         // saved stack pointer of a thread that does not run
	CPU       int            // the CPU that it runs on; -1: it does not run
}

// taskLayout is where struct task_struct has its members.
type taskLayout struct {
	pid, tgid, comm, stack, sp, onCPU, cpu, tasks, node, signal uint64
	head                                                        uint64 // signal_struct.thread_head
	stackSize                                                   uint64
}

func (k *Kernel) taskLayout() (*taskLayout, error) {
	k.taskOnce.Do(func() { k.task, k.taskErr = k.findTaskLayout() })
	return k.task, k.taskErr
}

func (k *Kernel) findTaskLayout() (*taskLayout, error) {
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	o, s := &offsets{t: t, typ: "task_struct"}, &offsets{t: t, typ: "signal_struct"}
	l := &taskLayout{
		pid: o.of("pid"), tgid: o.of("tgid"), comm: o.of("comm"), stack: o.of("stack"), sp: o.of("thread.sp"),
		tasks: o.of("tasks"), node: o.of("thread_node"), signal: o.of("signal"), head: s.of("thread_head"),
		stackSize: k.stackSize(),
	}
	if k.CPUs() > 1 {
		l.onCPU, l.cpu = o.of("on_cpu"), o.of("thread_info.cpu", "cpu")
	}
	return l, cmp.Or(o.err, s.err)
}

// stackSize is THREAD_SIZE: 16 KiB, twice that under KASAN. The first thread's stack has
// that much room in the image (INIT_TASK_DATA in vmlinux.lds.h).
func (k *Kernel) stackSize() uint64 {
	const usual = 4 * pageSize
	va, ok := k.Addr("init_stack")
	if !ok {
		return usual
	}
	i, _ := symbolAt(k.syms, va)
	if n := end(k.syms, i) - va; bits.OnesCount64(n) == 1 && n >= usual && n <= 4*usual {
		return n
	}
	return usual
}

// Tasks calls f for the idle thread of each CPU, then for every thread of every process,
// until f gives false. The walk reads live memory: with the guest running it may miss threads
// that come and go. Errors: no types (ENOENT), EAGAIN if a list was caught changing; f has
// been called for what came before.
func (k *Kernel) Tasks(f func(Task) bool) error {
	l, err := k.taskLayout()
	if err != nil {
		return err
	}
	w := &taskWalk{Kernel: k, l: l, f: f, most: k.mostTasks()}
	if init, ok := k.Addr("init_task"); ok {
		return w.all(init)
	}
	return errno.Errorf(syscall.ENOENT, "the guest's kernel has no symbol init_task")
}

// mostTasks bounds a walk by the kernel's own count of threads, with room for what comes
// while it goes on.
func (k *Kernel) mostTasks() int {
	if va, ok := k.Addr("nr_threads"); ok {
		if n, err := k.u32(va); err == nil {
			return min(maxTasks, 2*int(n)+1024)
		}
	}
	return maxTasks
}

// taskWalk is a walk over all threads.
type taskWalk struct {
	*Kernel
	l    *taskLayout
	f    func(Task) bool
	n    int
	most int
	stop bool
}

func (w *taskWalk) all(init uint64) error {
	if err := w.idle(init); err != nil || w.stop {
		return err
	}
	head := init + w.l.tasks
	at, err := w.u64(head)
	for n := 0; err == nil && at != head && !w.stop; n++ {
		if n > w.most {
			err = errno.Errorf(syscall.EAGAIN, "more than %d processes", w.most)
			break
		}
		leader := at - w.l.tasks
		if err = w.threads(leader); err == nil {
			at, err = w.u64(at)
		}
	}
	if err != nil {
		return errno.Errorf(syscall.EAGAIN, "the list of the guest's threads was caught changing, or is damaged: %w", err)
	}
	return nil
}

// idle takes the idle threads, which are on no list: CPU 0 has init_task, the others' are in
// a per-CPU variable.
func (w *taskWalk) idle(init uint64) error {
	if err := w.one(init); err != nil {
		return err
	}
	for cpu := range w.CPUs() {
		va, err := w.perCPU("idle_threads", cpu)
		if err != nil {
			return nil // CONFIG_SMP=n
		}
		at, err := w.u64(va)
		if err != nil || at == 0 || at == init || w.stop {
			continue
		}
		if err := w.one(at); err != nil {
			return err
		}
	}
	return nil
}

// threads takes the threads of a process.
func (w *taskWalk) threads(leader uint64) error {
	signal, err := w.u64(leader + w.l.signal)
	if err != nil {
		return err
	}
	if signal == 0 {
		return w.one(leader)
	}
	head := signal + w.l.head
	at, err := w.u64(head)
	for err == nil && at != head && !w.stop {
		if err = w.one(at - w.l.node); err == nil {
			at, err = w.u64(at)
		}
	}
	return err
}

func (w *taskWalk) one(at uint64) error {
	if w.n++; w.n > w.most {
		return errno.Errorf(syscall.EAGAIN, "more than %d threads", w.most)
	}
	t, err := w.read(at)
	if err != nil {
		return err
	}
	w.stop = !w.f(t)
	return nil
}

func (w *taskWalk) read(at uint64) (Task, error) {
	l := w.l
	t := Task{Addr: at, CPU: -1}
	pid, err1 := w.u32(at + l.pid)
	tgid, err2 := w.u32(at + l.tgid)
	stack, err3 := w.u64(at + l.stack)
	sp, err4 := w.u64(at + l.sp)
	var comm [16]byte
	if err := cmp.Or(err1, err2, err3, err4, w.Read(at+l.comm, comm[:])); err != nil {
		return t, err
	}
	t.PID, t.TGID, t.SP = int(int32(pid)), int(int32(tgid)), sp
	n := 0
	for n < len(comm) && comm[n] != 0 {
		n++
	}
	t.Comm = string(comm[:n])
	if stack >= 1<<63 {
		t.Stack = interval.Range{Start: stack, End: stack + l.stackSize}
	}
	return t, w.running(&t)
}

// running finds out whether a thread runs, and where.
func (w *taskWalk) running(t *Task) error {
	if w.l.onCPU == 0 {
		if cur, err := w.current(0); err == nil && cur == t.Addr {
			t.CPU = 0
		}
		return nil
	}
	var on [1]byte // 0 or 1: an int, or in the newest kernels a byte beside others
	if err := w.Read(t.Addr+w.l.onCPU, on[:]); err != nil || on[0] == 0 {
		return err
	}
	cpu, err := w.u32(t.Addr + w.l.cpu)
	t.CPU = int(min(cpu, maxCPUs))
	return err
}

// current gives the task that a CPU runs.
func (k *Kernel) current(cpu int) (uint64, error) {
	off, err := k.perCPUOffset("current_task", "current_task")
	if err != nil {
		return 0, err
	}
	base := k.PerCPU(cpu)
	if base == 0 {
		return 0, errno.Errorf(syscall.ENOENT, "CPU %d is not possible in the guest", cpu)
	}
	return k.u64(base + uint64(int64(off)))
}
