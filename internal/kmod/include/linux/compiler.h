// What kernel code says to the compiler.
#ifndef _LINUX_COMPILER_H
#define _LINUX_COMPILER_H

#ifndef __KERNEL__
#define __KERNEL__
#endif
#define CONFIG_X86 1
#define CONFIG_X86_64 1
#define CONFIG_64BIT 1
#define CONFIG_SMP 1
#define CONFIG_MODULES 1
#define CONFIG_MODULE_UNLOAD 1
#define CONFIG_PRINTK 1
#define CONFIG_KALLSYMS 1
#define CONFIG_KPROBES 1
#define CONFIG_KRETPROBES 1
#define CONFIG_OPTPROBES 1
#define CONFIG_HZ 1000
#define CONFIG_NR_CPUS 1024

// An option that is defined as 1 is enabled: the word that is pasted from it has a comma in it.
#define __KP_COMMA_1 0,
#define __kp_second(first, second, ...) second
#define __kp_is_1(junk) __kp_second(junk 1, 0, 0)
#define __kp_enabled_1(value) __kp_is_1(__KP_COMMA_##value)
#define __kp_enabled(value) __kp_enabled_1(value)
#define IS_ENABLED(option) __kp_enabled(option)
#define IS_BUILTIN IS_ENABLED
#define IS_REACHABLE IS_ENABLED
#define IS_MODULE(option) 0

#define __user
#define __kernel
#define __iomem
#define __percpu
#define __rcu
#define __force
#define __must_check __attribute__((warn_unused_result))
#define __used __attribute__((used))
#define __unused __attribute__((unused))
#define __maybe_unused __attribute__((unused))
#define __always_unused __attribute__((unused))
#define __packed __attribute__((packed))
#define __aligned(n) __attribute__((aligned(n)))
#define __section(name) __attribute__((section(name)))
#define __weak __attribute__((weak))
#define __pure __attribute__((pure))
#define __attribute_const__ __attribute__((const))
#define __noreturn __attribute__((noreturn))
#define __printf(at, first) __attribute__((__format__(__printf__, at, first)))
#define __always_inline inline __attribute__((always_inline))
#define noinline __attribute__((noinline))
#define noinline_for_stack noinline
#define notrace
#define asmlinkage
#define __visible
#define __cold
#define __read_mostly
#define __ro_after_init
#define ____cacheline_aligned __aligned(64)
#define ____cacheline_aligned_in_smp __aligned(64)
#if defined(__has_attribute) && __has_attribute(fallthrough)
#define fallthrough __attribute__((fallthrough))
#else
#define fallthrough do {} while (0)
#endif

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() __asm__ __volatile__("" ::: "memory")
#define unreachable() __builtin_unreachable()
#define offsetof(type, member) __builtin_offsetof(type, member)
#define sizeof_field(type, member) sizeof(((type *)0)->member)
#define typeof_member(type, member) typeof(((type *)0)->member)
#define __same_type(a, b) __builtin_types_compatible_p(typeof(a), typeof(b))

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define ACCESS_ONCE(x) (*(volatile typeof(x) *)&(x))

#define __stringify_1(x...) #x
#define __stringify(x...) __stringify_1(x)
#define __PASTE_1(a, b) a##b
#define __PASTE(a, b) __PASTE_1(a, b)
#define __UNIQUE_ID(prefix) __PASTE(__PASTE(__UNIQUE_ID_, prefix), __COUNTER__)

#define BUILD_BUG_ON_MSG(condition, text) _Static_assert(!(condition), text)
#define BUILD_BUG_ON(condition) BUILD_BUG_ON_MSG(condition, "BUILD_BUG_ON: " #condition)
#define static_assert(expression, ...) _Static_assert(expression, #expression)

#endif
