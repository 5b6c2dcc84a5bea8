// Levels of the log.
#ifndef _LINUX_KERN_LEVELS_H
#define _LINUX_KERN_LEVELS_H
#include <linux/printk.h>
#endif
