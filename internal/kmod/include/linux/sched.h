// The thread that runs.
#ifndef _LINUX_SCHED_H
#define _LINUX_SCHED_H

#include <linux/kp_runtime.h>
#include <linux/smp.h>

#define current __kp_current()

static inline pid_t task_pid_nr(struct task_struct *t) { return t->pid; }
static inline pid_t task_tgid_nr(struct task_struct *t) { return t->tgid; }
static inline pid_t task_pid_vnr(struct task_struct *t) { return t->pid; }
static inline bool thread_group_leader(struct task_struct *t) { return t->pid == t->tgid; }
#define get_task_comm(to, t) __builtin_memcpy(to, (t)->comm, TASK_COMM_LEN)
#define in_task() 1
#define in_interrupt() 0
#define in_atomic() (__kp_slot()->atomic != 0)

#endif
