// Memory of a module's own.
#ifndef _LINUX_SLAB_H
#define _LINUX_SLAB_H

#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/kp_runtime.h>

#define __GFP_ZERO 0x100u
#define GFP_KERNEL 0u
#define GFP_ATOMIC 1u
#define GFP_NOWAIT 2u
#define GFP_USER 0u

// What is free lies in lists by its size: powers of two from 32 bytes on, with 16 bytes in front.
struct __kp_block {
	unsigned long class;
	struct __kp_block *next;
};

struct __kp_heap_lists {
	spinlock_t lock;
	char *used; // up to which the heap has been given out; 0: nothing has
	struct __kp_block *free[48];
};

__weak struct __kp_heap_lists __kp_lists;

__weak void *__kp_alloc(size_t size, gfp_t flags)
{
	struct __kp_heap_lists *l = &__kp_lists;
	struct __kp_block *b;
	unsigned long class = 5;
	while (class < 48 && (1UL << class) - sizeof *b < size)
		class++;
	if (class == 48)
		return NULL;
	spin_lock(&l->lock);
	b = l->free[class];
	if (b) {
		l->free[class] = b->next;
	} else {
		if (!l->used)
			l->used = __kp_heap;
		if ((unsigned long)(__kp_heap_end - l->used) >= 1UL << class) {
			b = (struct __kp_block *)l->used;
			l->used += 1UL << class;
		}
	}
	spin_unlock(&l->lock);
	if (!b)
		return NULL;
	b->class = class;
	if (flags & __GFP_ZERO)
		memset(b + 1, 0, size);
	return b + 1;
}

__weak void kfree(const void *p)
{
	struct __kp_block *b = (struct __kp_block *)p - 1;
	if (!p || b->class >= 48)
		return;
	spin_lock(&__kp_lists.lock);
	b->next = __kp_lists.free[b->class];
	__kp_lists.free[b->class] = b;
	spin_unlock(&__kp_lists.lock);
}

static inline void *kmalloc(size_t size, gfp_t flags) { return __kp_alloc(size, flags); }
static inline void *kzalloc(size_t size, gfp_t flags) { return __kp_alloc(size, flags | __GFP_ZERO); }
static inline void *kmalloc_array(size_t n, size_t size, gfp_t flags)
{
	size_t all;
	return __builtin_mul_overflow(n, size, &all) ? NULL : __kp_alloc(all, flags);
}
static inline void *kcalloc(size_t n, size_t size, gfp_t flags) { return kmalloc_array(n, size, flags | __GFP_ZERO); }
static inline char *kstrdup(const char *s, gfp_t flags)
{
	size_t n = s ? strlen(s) + 1 : 0;
	char *to = s ? __kp_alloc(n, flags) : NULL;
	return to ? memcpy(to, s, n) : NULL;
}
#define kvmalloc kmalloc
#define kvzalloc kzalloc
#define kvfree kfree
#define vmalloc(size) kmalloc(size, GFP_KERNEL)
#define vzalloc(size) kzalloc(size, GFP_KERNEL)
#define vfree kfree
#define kfree_sensitive kfree

#endif
