// Parameters of a module, which insmod sets.
#ifndef _LINUX_MODULEPARAM_H
#define _LINUX_MODULEPARAM_H

#include <linux/compiler.h>
#include <linux/types.h>

#ifndef KBUILD_MODNAME
#define KBUILD_MODNAME "module"
#endif

#define MODULE_INFO(tag, text) static const char __UNIQUE_ID(modinfo)[] __used __section(".modinfo") __aligned(1) = __stringify(tag) "=" text
#define MODULE_PARM_DESC(name, text) MODULE_INFO(parm, #name ":" text)
#define __MODULE_PARM_TYPE(name, text) MODULE_INFO(parmtype, #name ":" text)

struct __kp_param {
	const char *name, *type;
	void *value;
	unsigned long size;  // of value, or of an element, in bytes
	unsigned long most;  // elements; 0: it is no array
	unsigned int *count; // where their number goes; 0: nowhere
};

#define __KP_PARAM(name_, type_, value_, size_, most_, count_)                                           \
	static const struct __kp_param __UNIQUE_ID(param) __used __section("__param") __aligned(8) = {    \
		.name = #name_, .type = type_, .value = value_, .size = size_, .most = most_, .count = count_, \
	}

#define module_param_named(name, value, type, perm)                                                      \
	__KP_PARAM(name, #type, &(value), sizeof(value), 0, 0);                                           \
	__MODULE_PARM_TYPE(name, #type)
#define module_param(name, type, perm) module_param_named(name, name, type, perm)
#define module_param_unsafe module_param
#define core_param module_param_named
#define module_param_string(name, string, len, perm)                                                     \
	__KP_PARAM(name, "string", string, len, 0, 0);                                                     \
	__MODULE_PARM_TYPE(name, "string")
#define module_param_array_named(name, array, type, count, perm)                                         \
	__KP_PARAM(name, #type, array, sizeof((array)[0]), sizeof(array) / sizeof((array)[0]), count);      \
	__MODULE_PARM_TYPE(name, "array of " #type)
#define module_param_array(name, type, count, perm) module_param_array_named(name, name, type, count, perm)

typedef char *charp;

#endif
