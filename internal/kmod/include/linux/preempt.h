// A handler stays in its slot, whoever else runs meanwhile.
#ifndef _LINUX_PREEMPT_H
#define _LINUX_PREEMPT_H

#include <linux/compiler.h>

#define preempt_disable() barrier()
#define preempt_enable() barrier()
#define preempt_enable_no_resched() barrier()
#define preempt_disable_notrace() barrier()
#define preempt_enable_notrace() barrier()
#define preempt_count() 0
#define local_irq_disable() barrier()
#define local_irq_enable() barrier()
#define local_irq_save(flags) ((void)((flags) = 0))
#define local_irq_restore(flags) ((void)(flags))
#define rcu_read_lock() barrier()
#define rcu_read_unlock() barrier()
#define rcu_dereference(p) READ_ONCE(p)

#endif
