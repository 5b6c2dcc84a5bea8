// How memory is to be had.
#ifndef _LINUX_GFP_H
#define _LINUX_GFP_H
#include <linux/slab.h>
#endif
