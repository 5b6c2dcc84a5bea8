// Locks of the start and the end of a module.
#ifndef _LINUX_MUTEX_H
#define _LINUX_MUTEX_H

#include <linux/spinlock.h>

struct mutex {
	spinlock_t lock;
};

#define DEFINE_MUTEX(name) struct mutex name = {{0}}
#define mutex_init(m) spin_lock_init(&(m)->lock)
#define mutex_lock(m) spin_lock(&(m)->lock)
#define mutex_trylock(m) spin_trylock(&(m)->lock)
#define mutex_unlock(m) spin_unlock(&(m)->lock)

#endif
