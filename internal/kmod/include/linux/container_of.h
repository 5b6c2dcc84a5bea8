// The struct that a member belongs to.
#ifndef _LINUX_CONTAINER_OF_H
#define _LINUX_CONTAINER_OF_H

#include <linux/compiler.h>

#define container_of(p, type, member)                                        \
	({                                                                   \
		void *__kp_p = (void *)(p);                                  \
		(type *)((char *)__kp_p - offsetof(type, member));           \
	})

#endif
