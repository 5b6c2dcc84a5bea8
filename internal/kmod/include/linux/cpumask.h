// CPUs.
#ifndef _LINUX_CPUMASK_H
#define _LINUX_CPUMASK_H
#include <linux/smp.h>
#endif
