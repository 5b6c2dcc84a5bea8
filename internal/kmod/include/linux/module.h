// A module: its start, its end, what is told of it.
#ifndef _LINUX_MODULE_H
#define _LINUX_MODULE_H

#include <linux/errno.h>
#include <linux/export.h>
#include <linux/init.h>
#include <linux/kallsyms.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/stat.h>
#include <linux/string.h>
#include <linux/version.h>

#define MODULE_NAME_LEN 56

struct module {
	char name[MODULE_NAME_LEN];
};

static struct module __this_module __maybe_unused = {.name = KBUILD_MODNAME};
#define THIS_MODULE (&__this_module)

static const char __kp_abi[] __used __section(".modinfo") __aligned(1) = "kpabi=" __stringify(__KP_ABI);

#define MODULE_LICENSE(text) MODULE_INFO(license, text)
#define MODULE_AUTHOR(text) MODULE_INFO(author, text)
#define MODULE_DESCRIPTION(text) MODULE_INFO(description, text)
#define MODULE_VERSION(text) MODULE_INFO(version, text)
#define MODULE_ALIAS(text) MODULE_INFO(alias, text)
#define MODULE_SOFTDEP(text) MODULE_INFO(softdep, text)
#define MODULE_FIRMWARE(text) MODULE_INFO(firmware, text)
#define MODULE_DEVICE_TABLE(type, name)

// The semicolon behind them may be missing.
int init_module(void);
void cleanup_module(void);
#define module_init(f) int init_module(void) __attribute__((alias(#f)));
#define module_exit(f) void cleanup_module(void) __attribute__((alias(#f)));
#define late_initcall module_init
#define device_initcall module_init

static inline bool try_module_get(struct module *m) { return m != 0; }
static inline void module_put(struct module *m) { (void)m; }
static inline void __module_get(struct module *m) { (void)m; }

#endif
