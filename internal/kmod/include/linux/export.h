// What other modules may call.
#ifndef _LINUX_EXPORT_H
#define _LINUX_EXPORT_H

#include <linux/compiler.h>

#define EXPORT_SYMBOL(name) static const void *__UNIQUE_ID(export) __used __section("__ksymtab") = (const void *)&name
#define EXPORT_SYMBOL_GPL EXPORT_SYMBOL

#endif
