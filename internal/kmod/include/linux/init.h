// Functions and data of the start and the end of a module.
#ifndef _LINUX_INIT_H
#define _LINUX_INIT_H

#include <linux/compiler.h>

#define __init __section(".init.text")
#define __exit __section(".exit.text") __used
#define __initdata __section(".init.data")
#define __initconst __section(".init.rodata")
#define __exitdata __section(".exit.data")
#define __devinit
#define __devexit
#define __cpuinit

#endif
