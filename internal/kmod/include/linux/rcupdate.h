// What is read without a lock.
#ifndef _LINUX_RCUPDATE_H
#define _LINUX_RCUPDATE_H
#include <linux/preempt.h>
#endif
