// Types of kernel code.
#ifndef _LINUX_TYPES_H
#define _LINUX_TYPES_H

// A handler runs with the vector registers of the program that it was called in. gcc takes this for -mgeneral-regs-only; clang does not know it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("general-regs-only")
#endif

#include <linux/compiler.h>

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef long ssize_t;
typedef __UINTPTR_TYPE__ uintptr_t;

typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef s8 __s8, int8_t;
typedef s16 __s16, int16_t;
typedef s32 __s32, int32_t;
typedef s64 __s64, int64_t;
typedef u8 __u8, uint8_t, u_int8_t;
typedef u16 __u16, uint16_t, u_int16_t;
typedef u32 __u32, uint32_t, u_int32_t;
typedef u64 __u64, uint64_t, u_int64_t;
typedef u16 __be16, __le16;
typedef u32 __be32, __le32;
typedef u64 __be64, __le64;
typedef unsigned char uchar, u_char;
typedef unsigned short ushort, umode_t;
typedef unsigned int uint, gfp_t, fmode_t;
typedef unsigned long ulong, sector_t, pgoff_t;

typedef int pid_t;
typedef unsigned int uid_t, gid_t;
typedef long long loff_t;
typedef long time_t;
typedef long long time64_t;
typedef unsigned int dev_t;
typedef u64 dma_addr_t, phys_addr_t, resource_size_t;

#ifndef __cplusplus
typedef _Bool bool;
#define true 1
#define false 0
#endif
#define NULL ((void *)0)

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	s64 counter;
} atomic64_t;

typedef atomic64_t atomic_long_t;

struct list_head {
	struct list_head *next, *prev;
};

struct hlist_node {
	struct hlist_node *next, **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

#endif
