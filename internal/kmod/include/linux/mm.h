// Memory.
#ifndef _LINUX_MM_H
#define _LINUX_MM_H
#include <linux/slab.h>
#endif
