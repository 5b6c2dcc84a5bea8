// Vectors of memory.
#ifndef _LINUX_UIO_H
#define _LINUX_UIO_H

#include <linux/types.h>

struct iovec {
	void *iov_base;
	size_t iov_len;
};
struct iov_iter;

#endif
