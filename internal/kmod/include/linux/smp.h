// CPUs: a slot is one, since no two handlers run in it at a time.
#ifndef _LINUX_SMP_H
#define _LINUX_SMP_H

#include <linux/kp_runtime.h>
#include <linux/preempt.h>

#define NR_CPUS CONFIG_NR_CPUS
#define nr_cpu_ids ((unsigned int)(unsigned long)__kp_cpus)
#define smp_processor_id() ((int)__kp_slot()->cpu)
#define raw_smp_processor_id smp_processor_id
#define __smp_processor_id smp_processor_id
#define num_possible_cpus() nr_cpu_ids
#define num_online_cpus() nr_cpu_ids
#define for_each_possible_cpu(cpu) for ((cpu) = 0; (unsigned int)(cpu) < nr_cpu_ids; (cpu)++)
#define for_each_online_cpu for_each_possible_cpu
#define for_each_present_cpu for_each_possible_cpu

static inline int get_cpu(void) { return __kp_slot()->cpu; }
static inline void put_cpu(void) {}

#endif
