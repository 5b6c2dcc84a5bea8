// Names of the program's functions and data.
#ifndef _LINUX_KALLSYMS_H
#define _LINUX_KALLSYMS_H

#include <linux/kp_runtime.h>

#define KSYM_NAME_LEN 512
#define KSYM_SYMBOL_LEN (KSYM_NAME_LEN + 64)

// kallsyms_lookup_name gives an address; 0: no object has the name, or a handler asks.
static inline unsigned long kallsyms_lookup_name(const char *name)
{
	long at = __kp_request(__KP_LOOKUP_NAME, name, 0);
	return at < 0 && at >= -4095 ? 0 : at;
}

#endif
