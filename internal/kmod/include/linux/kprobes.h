// Kprobes as a module registers them. The tracer reads these structs, and writes what the kernel would write.
#ifndef _LINUX_KPROBES_H
#define _LINUX_KPROBES_H

#include <asm/ptrace.h>
#include <linux/bug.h>
#include <linux/errno.h>
#include <linux/init.h>
#include <linux/kp_runtime.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/spinlock.h>

typedef u8 kprobe_opcode_t;

#define __kprobes __section(".kprobes.text") noinline
#define nokprobe_inline inline
#define NOKPROBE_SYMBOL(f) static void *__UNIQUE_ID(nokprobe) __used __section("_kprobe_blacklist") = (void *)(f)

struct kprobe;
struct kretprobe;
struct kretprobe_instance;

typedef int (*kprobe_pre_handler_t)(struct kprobe *, struct pt_regs *);
typedef void (*kprobe_post_handler_t)(struct kprobe *, struct pt_regs *, unsigned long flags);
typedef int (*kprobe_fault_handler_t)(struct kprobe *, struct pt_regs *, int trapnr);
typedef int (*kprobe_break_handler_t)(struct kprobe *, struct pt_regs *);
typedef int (*kretprobe_handler_t)(struct kretprobe_instance *, struct pt_regs *);

struct kprobe {
	struct hlist_node hlist;
	struct list_head list;
	unsigned long nmissed; // hits whose handlers were not run
	kprobe_opcode_t *addr;
	const char *symbol_name;
	unsigned int offset;
	u32 flags;
	kprobe_pre_handler_t pre_handler;
	kprobe_post_handler_t post_handler;
	kprobe_fault_handler_t fault_handler;
	kprobe_break_handler_t break_handler; // never called
	kprobe_opcode_t opcode;               // the first byte of the instruction
	unsigned long __own;                  // the tracer's
};

#define KPROBE_FLAG_GONE 1
#define KPROBE_FLAG_DISABLED 2
#define KPROBE_FLAG_OPTIMIZED 4
#define KPROBE_FLAG_FTRACE 8

struct kretprobe {
	struct kprobe kp;
	kretprobe_handler_t handler, entry_handler;
	int maxactive;
	int nmissed; // calls that found no instance free
	size_t data_size;
};

#define KRETPROBE_MAX_DATA_SIZE 4096

struct kretprobe_instance {
	struct kretprobe *rp;
	kprobe_opcode_t *ret_addr;
	struct task_struct *task;
	void *fp;
	char data[] __aligned(16);
};

// A jumper probe: entry is a function with the probed function's arguments, which ends with jprobe_return.
struct jprobe {
	struct kprobe kp;
	void *entry;
};

#define JPROBE_ENTRY(f) ((void *)(f))

void jprobe_return(void);

static inline struct kretprobe *get_kretprobe(struct kretprobe_instance *ri) { return ri->rp; }
static inline unsigned long get_kretprobe_retaddr(struct kretprobe_instance *ri) { return (unsigned long)ri->ret_addr; }
static inline int kprobe_gone(struct kprobe *p) { return p->flags & KPROBE_FLAG_GONE; }
static inline int kprobe_disabled(struct kprobe *p) { return p->flags & (KPROBE_FLAG_DISABLED | KPROBE_FLAG_GONE); }
static inline int kprobe_optimized(struct kprobe *p) { return p->flags & KPROBE_FLAG_OPTIMIZED; }

#define __KP_REGISTRATION(type, what)                                                                                            \
	static inline int register_##type##s(struct type **all, int n) { return (int)__kp_request(__KP_REGISTER_##what, all, n); }   \
	static inline void unregister_##type##s(struct type **all, int n) { __kp_request(__KP_UNREGISTER_##what, all, n); }          \
	static inline int register_##type(struct type *one) { return register_##type##s(&one, 1); }                                  \
	static inline void unregister_##type(struct type *one) { unregister_##type##s(&one, 1); }

__KP_REGISTRATION(kprobe, KPROBE)
__KP_REGISTRATION(kretprobe, KRETPROBE)
__KP_REGISTRATION(jprobe, JPROBE)

static inline int enable_kprobe(struct kprobe *p) { return (int)__kp_request(__KP_ENABLE_KPROBE, p, 1); }
static inline int disable_kprobe(struct kprobe *p) { return (int)__kp_request(__KP_DISABLE_KPROBE, p, 1); }
static inline int enable_kretprobe(struct kretprobe *p) { return enable_kprobe(&p->kp); }
static inline int disable_kretprobe(struct kretprobe *p) { return disable_kprobe(&p->kp); }
static inline int enable_jprobe(struct jprobe *p) { return enable_kprobe(&p->kp); }
static inline int disable_jprobe(struct jprobe *p) { return disable_kprobe(&p->kp); }

#endif
