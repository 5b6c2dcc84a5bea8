// Variables of which each CPU has its own.
#ifndef _LINUX_PERCPU_H
#define _LINUX_PERCPU_H

#include <linux/smp.h>

#define DEFINE_PER_CPU(type, name) __section(".data..percpu") typeof(type) name
#define DECLARE_PER_CPU(type, name) extern typeof(type) name
#define DEFINE_PER_CPU_ALIGNED(type, name) DEFINE_PER_CPU(type, name) __aligned(64)
#define DEFINE_PER_CPU_SHARED_ALIGNED DEFINE_PER_CPU_ALIGNED
#define EXPORT_PER_CPU_SYMBOL(name)

#define per_cpu_ptr(p, cpu) ((typeof(p))((char *)(p) + (unsigned long)(cpu) * (unsigned long)__kp_percpu_stride))
#define per_cpu(name, cpu) (*per_cpu_ptr(&(name), cpu))
#define this_cpu_ptr(p) per_cpu_ptr(p, smp_processor_id())
#define raw_cpu_ptr this_cpu_ptr
#define get_cpu_ptr this_cpu_ptr
#define put_cpu_ptr(p) ((void)(p))
#define get_cpu_var(name) (*this_cpu_ptr(&(name)))
#define put_cpu_var(name) ((void)&(name))
#define this_cpu_read(name) (*this_cpu_ptr(&(name)))
#define this_cpu_write(name, v) ((void)(*this_cpu_ptr(&(name)) = (v)))
#define this_cpu_add(name, v) ((void)(*this_cpu_ptr(&(name)) += (v)))
#define this_cpu_sub(name, v) this_cpu_add(name, -(v))
#define this_cpu_inc(name) this_cpu_add(name, 1)
#define this_cpu_dec(name) this_cpu_add(name, -1)
#define this_cpu_add_return(name, v) (*this_cpu_ptr(&(name)) += (v))
#define this_cpu_inc_return(name) this_cpu_add_return(name, 1)
#define __this_cpu_read this_cpu_read
#define __this_cpu_write this_cpu_write
#define __this_cpu_add this_cpu_add
#define __this_cpu_inc this_cpu_inc
#define __this_cpu_dec this_cpu_dec
#define raw_cpu_read this_cpu_read
#define raw_cpu_write this_cpu_write

#endif
