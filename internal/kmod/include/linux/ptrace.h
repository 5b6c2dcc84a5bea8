#ifndef _LINUX_PTRACE_H
#define _LINUX_PTRACE_H
#include <asm/ptrace.h>
#endif
