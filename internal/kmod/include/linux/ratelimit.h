// Lines that come too often.
#ifndef _LINUX_RATELIMIT_H
#define _LINUX_RATELIMIT_H
#include <linux/printk.h>
#endif
