package kernel

import (
	"cmp"
	"fmt"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// Saved calls f for every word, of 8 bytes and aligned, on every kernel stack that is in
// use, with its thread: return addresses and the instruction pointers of interrupted code are among them. It
// is how to find out whether any thread will return into given code. The vCPUs must be
// stopped; sps holds the stack pointer of each by the number of its CPU. Of a thread that
// does not run it takes what is above its saved stack pointer; of one that runs what is above
// its CPU's, on the stacks of exceptions and interrupts in progress and then on its own.
// Errors: those of Tasks; EFAULT for a stack that can not be read: then any address must be
// taken to be on it.
func (k *Kernel) Saved(sps []uint64, f func(t *Task, word uint64)) error {
	return k.stacks(sps, func(t Task) error { return k.stackOf(&t, f) }, k.reads(f))
}

// Stacks calls use for every kernel stack that Saved reads, also for those of running threads on
// which nothing is in use, with its thread, and with the part of it that is in use: of the stack that
// lies in whole what is below used.Start is over.
func (k *Kernel) Stacks(sps []uint64, use func(t *Task, whole, used interval.Range)) error {
	running := func(t *Task, whole, used interval.Range) error {
		use(t, whole, used)
		return nil
	}
	return k.stacks(sps, func(t Task) error { return running(&t, t.Stack, inUse(t.SP, t.Stack)) }, running)
}

// onStack is what is done with a stack of a thread.
type onStack func(t *Task, whole, used interval.Range) error

// reads gives every word of a stack that is in use to f.
func (k *Kernel) reads(f func(t *Task, word uint64)) onStack {
	return func(t *Task, _, used interval.Range) error {
		return k.words(used, func(w uint64) { f(t, w) })
	}
}

// stacks calls waiting for every thread that does not run, and running for the stacks of the others.
func (k *Kernel) stacks(sps []uint64, waiting func(Task) error, running onStack) error {
	var bad error
	listed := map[uint64]bool{}
	err := k.Tasks(func(t Task) bool {
		if t.Stack.Start == 0 {
			return true
		}
		listed[t.Addr] = true
		if t.CPU < 0 {
			bad = waiting(t)
		} else {
			bad = k.runningStacks(&t, sps, running)
		}
		if bad != nil {
			bad = fmt.Errorf("thread %d (%s): %w", t.PID, t.Comm, bad)
		}
		return bad == nil
	})
	if err := cmp.Or(bad, err); err != nil {
		return err
	}
	if err := k.unlisted(sps, listed, running); err != nil {
		return err
	}
	return k.queued(listed, waiting)
}

// queued is unlisted for threads that were preempted, and wait for a CPU: each CPU's queue has
// them (struct rq, kernel/sched/sched.h; only with CONFIG_SMP is there a list of all).
func (k *Kernel) queued(listed map[uint64]bool, waiting func(Task) error) error {
	list, _, err1 := k.Offset("rq", "cfs_tasks")
	node, _, err2 := k.Offset("task_struct", "se.group_node")
	l, err := k.taskLayout()
	if err1 != nil || err2 != nil || err != nil {
		return err // one CPU, whose thread is the current one unless the kernel preempts
	}
	w := &taskWalk{Kernel: k, l: l}
	for cpu := range k.CPUs() {
		rq, err := k.perCPU("runqueues", cpu)
		if err != nil {
			continue // not possible
		}
		head := rq + uint64(list)
		at, err := k.u64(head)
		for n := 0; err == nil && at != head && at != 0; n++ {
			if n > maxTasks {
				return errno.Errorf(syscall.EAGAIN, "the queue of CPU %d was caught changing, or is damaged", cpu)
			}
			if a := at - uint64(node); !listed[a] {
				t, err := w.read(a)
				if err == nil && t.Stack.Start != 0 && t.CPU < 0 {
					err = waiting(t)
				}
				if err != nil {
					return fmt.Errorf("a thread in the queue of CPU %d: %w", cpu, err)
				}
			}
			at, err = k.u64(at)
		}
		if err != nil {
			return fmt.Errorf("the queue of CPU %d: %w", cpu, err)
		}
	}
	return nil
}

// unlisted is stacks for threads that run and are on no list any more: one that nobody waits for
// leaves the lists some time before it stops for good (release_task in kernel/exit.c).
func (k *Kernel) unlisted(sps []uint64, listed map[uint64]bool, running onStack) error {
	l, err := k.taskLayout()
	if err != nil {
		return err
	}
	w := &taskWalk{Kernel: k, l: l}
	for cpu := range min(k.CPUs(), len(sps)) {
		at, err := k.current(cpu)
		if err != nil || at == 0 || listed[at] {
			continue // the CPU is not possible, or never ran
		}
		t, err := w.read(at)
		if err != nil {
			return fmt.Errorf("the thread of CPU %d: %w", cpu, err)
		}
		if t.CPU = cpu; t.Stack.Start == 0 {
			continue
		}
		if err := k.runningStacks(&t, sps, running); err != nil {
			return fmt.Errorf("thread %d (%s): %w", t.PID, t.Comm, err)
		}
	}
	return nil
}

// stackOf reads what is in use of the stack of a thread that does not run.
func (k *Kernel) stackOf(t *Task, f func(t *Task, word uint64)) error {
	return k.words(inUse(t.SP, t.Stack), func(w uint64) { f(t, w) })
}

// inUse is a stack from a stack pointer up; all of it where the pointer is not in it.
func inUse(sp uint64, r interval.Range) interval.Range {
	if !r.Contains(sp) {
		sp = r.Start
	}
	return interval.Range{Start: (sp + 7) &^ 7, End: r.End}
}

// words reads a part of a stack.
func (k *Kernel) words(r interval.Range, f func(word uint64)) error {
	for sp := r.Start; sp < r.End; {
		pa, left, _, ok := k.Translate(sp)
		if !ok {
			return k.fault(sp)
		}
		n := int(min(left, r.End-sp)) &^ 7
		b := k.mem.Bytes(pa, n)
		if b == nil || n == 0 {
			return k.fault(sp)
		}
		for ; len(b) >= 8; b = b[8:] {
			f(word(b))
		}
		sp += uint64(n)
	}
	return nil
}

// runningStacks calls f for the stacks of a running thread: those that its CPU has switched to since,
// then its own. Each of the former has the pointer into the one before at its top.
func (k *Kernel) runningStacks(t *Task, sps []uint64, f onStack) error {
	if t.CPU >= len(sps) {
		return errno.Errorf(syscall.EINVAL, "it runs on CPU %d, whose stack pointer was not given", t.CPU)
	}
	sp := sps[t.CPU]
	const most = 16 // stacks of one CPU: interrupt, #DF, NMI, #DB, #MC, #VC twice, entry
	for range most {
		if sp>>63 == 0 {
			return f(t, t.Stack, interval.Range{Start: t.Stack.End, End: t.Stack.End}) // in user mode, or nothing before: the thread's own stack is empty
		}
		if sp > t.Stack.Start && sp <= t.Stack.End {
			return f(t, t.Stack, interval.Range{Start: (sp + 7) &^ 7, End: t.Stack.End})
		}
		s, ok := k.cpuStack(t.CPU, sp)
		if !ok {
			break
		}
		if err := f(t, s.Range, inUse(sp, s.Range)); err != nil {
			return err
		}
		next, err := k.u64(s.End - s.link)
		if err != nil {
			return err
		}
		sp = next
	}
	return k.allStacks(t, f)
}

// allStacks calls f for everything that may hold an address of a running thread, for a stack
// pointer that is in none of the stacks known.
func (k *Kernel) allStacks(t *Task, f onStack) error {
	for _, s := range k.cpuStacks(t.CPU) {
		if err := f(t, s.Range, s.Range); err != nil {
			return err
		}
	}
	return f(t, t.Stack, t.Stack)
}

// cpuStack is a stack that a CPU switches to. The stack pointer of before lies link bytes
// below its end.
type cpuStack struct {
	interval.Range
	link uint64
}

func (k *Kernel) cpuStack(cpu int, sp uint64) (cpuStack, bool) {
	for _, s := range k.cpuStacks(cpu) {
		if sp >= s.Start && sp < s.End {
			return s, true
		}
	}
	return cpuStack{}, false
}

// cpuStacks lists a CPU's stacks for interrupts and exceptions, as
// arch/x86/kernel/dumpstack_64.c does.
func (k *Kernel) cpuStacks(cpu int) []cpuStack {
	var out []cpuStack
	if va, err := k.irqStackPtr(cpu); err == nil {
		if top, err := k.u64(va); err == nil && top>>63 == 1 {
			out = append(out, irqStack(top))
		}
	}
	va, err := k.perCPU("cea_exception_stacks", cpu)
	if err != nil {
		return out
	}
	base, err := k.u64(va)
	if err != nil || base>>63 == 0 {
		return out
	}
	const framePointer = 16 // of the stack pointer in an interrupt frame: before SS, and the end
	for _, name := range []string{"DF_stack", "NMI_stack", "DB_stack", "MCE_stack"} {
		off, size, err := k.Offset("cea_exception_stacks", name)
		if err == nil && size >= pageSize {
			lo := base + uint64(off)
			out = append(out, cpuStack{interval.Range{Start: lo, End: lo + uint64(size)}, framePointer})
		}
	}
	return out
}

// irqStack is the stack for interrupts by its pointer, hardirq_stack_ptr: the stack's end until 5.11,
// and since then its topmost word, where the link is (map_irq_stack in arch/x86/kernel/irq_64.c).
func irqStack(ptr uint64) cpuStack {
	end := ptr
	if ptr%pageSize != 0 {
		end += 8
	}
	return cpuStack{interval.Range{Start: end - 4*pageSize, End: end}, 8}
}

// irqStackPtr gives the address of a CPU's pointer to its stack for interrupts.
func (k *Kernel) irqStackPtr(cpu int) (uint64, error) {
	if _, hot := k.Addr("pcpu_hot"); hot {
		if off, _, err := k.Offset("pcpu_hot", "hardirq_stack_ptr"); err == nil {
			va, err := k.perCPU("pcpu_hot", cpu)
			return va + uint64(off), err
		}
	}
	return k.perCPU("hardirq_stack_ptr", cpu)
}

// cachedStacks is how many stacks a CPU keeps where the types do not tell, since they list no variables,
// as in Debian's 5.10 (NR_CACHED_STACKS in kernel/fork.c: 2 since there are any, in Linux 4.9).
const cachedStacks = 2

// FreeStacks lists the stacks that CPUs keep for the next thread that is made: nothing on them is in use.
// A thread's stack gets there, or is unmapped, once the thread is dead and its CPU has switched to another
// one (finish_task_switch in kernel/sched/core.c, free_thread_stack in kernel/fork.c; with CONFIG_VMAP_STACK).
// A stack is not among them while somebody still holds it, nor, since Linux 5.18, before an RCU grace period has passed.
func (k *Kernel) FreeStacks() ([]interval.Range, error) {
	l, err := k.taskLayout()
	if err != nil {
		return nil, err
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	first, _, err := k.Offset("vm_struct", "addr")
	if err != nil {
		return nil, err
	}
	var out []interval.Range
	for cpu := range k.CPUs() {
		va, err := k.perCPU("cached_stacks", cpu)
		if err != nil {
			continue // no such kernel, or no such CPU
		}
		for n := range cmp.Or(t.varSize("cached_stacks")/8, cachedStacks) {
			area, err := k.u64(va + uint64(8*n))
			if err != nil || area == 0 {
				continue
			}
			if at, err := k.u64(area + uint64(first)); err == nil {
				out = append(out, interval.Range{Start: at, End: at + l.stackSize})
			}
		}
	}
	return out, nil
}
