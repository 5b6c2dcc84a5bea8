// Bits.
#ifndef _LINUX_BITS_H
#define _LINUX_BITS_H
#include <linux/bitops.h>
#endif
