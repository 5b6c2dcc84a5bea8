// What a module has of kprobe where it is loaded: the loader puts these functions in place of their names. Handlers of one thread run in one
// slot, which stands for a CPU: no two run in the same at a time.
#ifndef _LINUX_KP_RUNTIME_H
#define _LINUX_KP_RUNTIME_H

#include <linux/types.h>

#define __KP_ABI 1 // of all that stands here, and of the structs of linux/kprobes.h

#define TASK_COMM_LEN 16

// A thread as handlers know it.
struct mm_struct {
	unsigned long start_code;
};

struct task_struct {
	pid_t pid, tgid;
	char comm[TASK_COMM_LEN];
	struct mm_struct *mm, *active_mm; // mm is 0 in a thread of a kernel's own
	struct task_struct *group_leader, *parent, *real_parent;
	unsigned int flags;
	long state;
	int prio;
};

// __kp_slot_data begins a slot.
struct __kp_slot_data {
	unsigned int cpu;
	unsigned int atomic; // a handler runs in it; 0: the start or the end of the module
	struct task_struct task;
};

// __kp_slot gives the slot of the thread that runs, whose task is filled in by __kp_current.
struct __kp_slot_data *__kp_slot(void);
struct task_struct *__kp_current(void);

// __kp_record writes words to the log. It waits for nobody; what finds no room is counted.
void __kp_record(const unsigned long *words, unsigned long n);

// __kp_copy and __kp_copy_string read memory that may not be there, and give how many bytes they could not copy, or -EFAULT; the latter gives the length
// of the string without its end, at most n - 1, which ends with a zero byte in any case.
unsigned long __kp_copy(void *to, const void *from, unsigned long n);
long __kp_copy_string(char *to, const char *from, unsigned long n);

unsigned long long __kp_nanoseconds(void); // CLOCK_MONOTONIC

// __kp_request asks the tracer, and waits for its answer: at the start and the end of a module only, -EDEADLK where a handler calls it.
long __kp_request(long what, const void *of, long n);

enum {
	__KP_REGISTER_KPROBE = 1, // of an array of n pointers
	__KP_UNREGISTER_KPROBE,
	__KP_REGISTER_KRETPROBE,
	__KP_UNREGISTER_KRETPROBE,
	__KP_REGISTER_JPROBE,
	__KP_UNREGISTER_JPROBE,
	__KP_ENABLE_KPROBE, // of one
	__KP_DISABLE_KPROBE,
	__KP_LOOKUP_NAME,
};

// Each CPU's copy of a variable lies so many bytes behind the one before.
extern char __kp_percpu_stride[];

// How many CPUs there are, as the address of nothing.
extern char __kp_cpus[];

// Memory for kmalloc, all zero at first.
extern char __kp_heap[], __kp_heap_end[];

#endif
