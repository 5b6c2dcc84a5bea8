#ifndef _LINUX_TIME_H
#define _LINUX_TIME_H
#include <linux/ktime.h>
#include <linux/math64.h>
#endif
