// The registers of a thread at a probe, in the order of arch/x86/include/asm/ptrace.h (Linux 6.18), by the names of all ages.
#ifndef _ASM_PTRACE_H
#define _ASM_PTRACE_H

#include <linux/types.h>

#define __KP_NAMES(...)                        \
	union {                                \
		unsigned long __VA_ARGS__;     \
	}

struct pt_regs {
	unsigned long r15, r14, r13, r12;
	__KP_NAMES(bp, rbp, ebp);
	__KP_NAMES(bx, rbx, ebx);
	unsigned long r11, r10, r9, r8;
	__KP_NAMES(ax, rax, eax);
	__KP_NAMES(cx, rcx, ecx);
	__KP_NAMES(dx, rdx, edx);
	__KP_NAMES(si, rsi, esi);
	__KP_NAMES(di, rdi, edi);
	__KP_NAMES(orig_ax, orig_rax, orig_eax);
	__KP_NAMES(ip, rip, eip);
	__KP_NAMES(cs, xcs);
	__KP_NAMES(flags, eflags, rflags);
	__KP_NAMES(sp, rsp, esp);
	__KP_NAMES(ss, xss);
};

static inline unsigned long instruction_pointer(struct pt_regs *regs) { return regs->ip; }
static inline void instruction_pointer_set(struct pt_regs *regs, unsigned long ip) { regs->ip = ip; }
static inline unsigned long frame_pointer(struct pt_regs *regs) { return regs->bp; }
static inline unsigned long user_stack_pointer(struct pt_regs *regs) { return regs->sp; }
static inline unsigned long kernel_stack_pointer(struct pt_regs *regs) { return regs->sp; }
static inline unsigned long regs_return_value(struct pt_regs *regs) { return regs->ax; }
static inline void regs_set_return_value(struct pt_regs *regs, unsigned long value) { regs->ax = value; }
static inline int is_syscall_success(struct pt_regs *regs) { return (long)regs->ax >= 0 || (long)regs->ax < -4095; }
static inline int user_mode(struct pt_regs *regs) { return regs == 0; } // what is probed takes the place of the kernel

// regs_get_kernel_argument gives argument n of the function at whose first instruction the probe stands, from 0.
static inline unsigned long regs_get_kernel_argument(struct pt_regs *regs, unsigned int n)
{
	switch (n) {
	case 0: return regs->di;
	case 1: return regs->si;
	case 2: return regs->dx;
	case 3: return regs->cx;
	case 4: return regs->r8;
	case 5: return regs->r9;
	}
	return ((unsigned long *)regs->sp)[1 + n - 6]; // behind the return address
}

static inline unsigned long regs_get_kernel_stack_nth(struct pt_regs *regs, unsigned int n)
{
	return ((unsigned long *)regs->sp)[n];
}

#endif
