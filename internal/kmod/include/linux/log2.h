// Logarithms.
#ifndef _LINUX_LOG2_H
#define _LINUX_LOG2_H
#include <linux/bitops.h>
#endif
