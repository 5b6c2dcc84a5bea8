// Locks of handlers. A thread that waits for one spins: whoever has it runs in another thread.
#ifndef _LINUX_SPINLOCK_H
#define _LINUX_SPINLOCK_H

#include <linux/atomic.h>
#include <linux/preempt.h>

typedef struct {
	unsigned int taken;
} spinlock_t;
typedef spinlock_t raw_spinlock_t, rwlock_t;

#define __SPIN_LOCK_UNLOCKED(name) {0}
#define SPIN_LOCK_UNLOCKED {0}
#define DEFINE_SPINLOCK(name) spinlock_t name = {0}
#define DEFINE_RAW_SPINLOCK DEFINE_SPINLOCK

static inline void spin_lock_init(spinlock_t *l) { l->taken = 0; }
static inline int spin_trylock(spinlock_t *l) { return !__atomic_exchange_n(&l->taken, 1, __ATOMIC_ACQUIRE); }
// Who had it may have been abandoned, or is no part of a child that has forked: the handler that waits for ever is abandoned too.
static inline void spin_lock(spinlock_t *l)
{
	unsigned int turns = 0;
	while (!spin_trylock(l))
		while (__atomic_load_n(&l->taken, __ATOMIC_RELAXED)) {
			__asm__ __volatile__("pause" ::: "memory");
			if (++turns == 1u << 28)
				__builtin_trap();
		}
}
static inline void spin_unlock(spinlock_t *l) { __atomic_store_n(&l->taken, 0, __ATOMIC_RELEASE); }
static inline int spin_is_locked(spinlock_t *l) { return __atomic_load_n(&l->taken, __ATOMIC_RELAXED) != 0; }

#define spin_lock_irq spin_lock
#define spin_unlock_irq spin_unlock
#define spin_lock_bh spin_lock
#define spin_unlock_bh spin_unlock
#define spin_lock_irqsave(l, flags)      \
	do {                             \
		local_irq_save(flags);   \
		spin_lock(l);            \
	} while (0)
#define spin_unlock_irqrestore(l, flags) \
	do {                             \
		spin_unlock(l);          \
		local_irq_restore(flags);\
	} while (0)
#define raw_spin_lock_init spin_lock_init
#define raw_spin_lock spin_lock
#define raw_spin_unlock spin_unlock
#define raw_spin_lock_irqsave spin_lock_irqsave
#define raw_spin_unlock_irqrestore spin_unlock_irqrestore

#endif
