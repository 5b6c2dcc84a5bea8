package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"syscall"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
)

// maxCPUs is the most that Linux on x86-64 can be built for (CONFIG_NR_CPUS).
const maxCPUs = 8192

// CPUs gives the number of possible CPUs: their numbers are below it. It is 1 if the guest's
// memory does not tell.
func (k *Kernel) CPUs() int {
	n := 0
	if va, ok := k.Addr("__cpu_possible_mask"); ok {
		mask := make([]byte, maxCPUs/8)
		if i, ok := symbolAt(k.syms, va); ok {
			mask = mask[:min(end(k.syms, i)-va, uint64(len(mask)))&^7]
		}
		if k.Read(va, mask) == nil {
			for i := 0; i+8 <= len(mask); i += 8 {
				if w := le64(mask, i); w != 0 {
					n = i*8 + bits.Len64(w)
				}
			}
		}
	}
	if va, ok := k.Addr("nr_cpu_ids"); ok {
		if ids, err := k.u32(va); err == nil && ids > 0 && (n == 0 || int(ids) < n) {
			n = int(min(ids, maxCPUs))
		}
	}
	return max(n, 1)
}

// PerCPU gives the base of a CPU's per-CPU memory, which its GS base is while it runs in the
// kernel: a per-CPU variable is there plus the address of its symbol. It is 0 for a CPU that
// is not possible.
func (k *Kernel) PerCPU(cpu int) uint64 {
	va, ok := k.Addr("__per_cpu_offset")
	if !ok || cpu < 0 || cpu >= maxCPUs {
		return 0
	}
	if i, ok := symbolAt(k.syms, va); ok && uint64(cpu) >= (end(k.syms, i)-va)/8 {
		return 0
	}
	base, err := k.u64(va + 8*uint64(cpu))
	if err != nil || base < 1<<63 {
		return 0
	}
	return base
}

// perCPU gives the address of a CPU's copy of a per-CPU variable.
func (k *Kernel) perCPU(name string, cpu int) (uint64, error) {
	va, ok := k.Addr(name)
	if !ok {
		return 0, errno.Errorf(syscall.ENOENT, "the guest's kernel has no per-CPU variable %s", name)
	}
	base := k.PerCPU(cpu)
	if base == 0 {
		return 0, errno.Errorf(syscall.ENOENT, "CPU %d is not possible in the guest", cpu)
	}
	return base + va, nil
}

// perCPUOffset gives what an instruction adds to the GS base for a per-CPU variable: one of
// its own, or a member of struct pcpu_hot (6.2 to 6.14).
func (k *Kernel) perCPUOffset(name, hot string) (int32, error) {
	va, ok := k.Addr(name)
	if base, isHot := k.Addr("pcpu_hot"); isHot {
		off, _, err := k.Offset("pcpu_hot", hot)
		if err == nil {
			va, ok = base+uint64(off), true
		}
	}
	if !ok || uint64(int64(int32(va))) != va {
		return 0, errno.Errorf(syscall.ENOENT, "the guest's kernel has neither a per-CPU variable %s nor pcpu_hot.%s", name, hot)
	}
	return int32(va), nil
}

// Arch gives what generated code needs to know of the kernel. The error, ENOENT, names what
// the kernel lacks.
func (k *Kernel) Arch() (*arch.Kernel, error) {
	a := &arch.Kernel{UserEnd: 1<<47 - pageSize}
	if k.levels == 5 {
		a.UserEnd = 1<<56 - pageSize
	}
	var err1, err2, err3 error
	a.CPU, err1 = k.perCPUOffset("cpu_number", "cpu_number")
	a.Current, err2 = k.perCPUOffset("current_task", "current_task")
	a.Preempt, err3 = k.perCPUOffset("__preempt_count", "preempt_count")
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	task := &offsets{t: t, typ: "task_struct"}
	a.PID, a.Comm = int32(task.of("pid")), int32(task.of("comm"))
	if task.err != nil {
		return nil, task.err
	}
	for _, f := range []struct {
		name string
		to   *uint64
	}{
		{"copy_from_kernel_nofault", &a.ReadKernel},
		{"copy_from_user_nofault", &a.ReadUser},
		{"strncpy_from_kernel_nofault", &a.StringKernel},
		{"strncpy_from_user_nofault", &a.StringUser},
		{"strnlen_user_nofault", &a.LengthUser},
	} {
		va, ok := k.Addr(f.name)
		if !ok || !k.InText(va) {
			return nil, errno.Errorf(syscall.ENOENT, "the guest's kernel %s has no function %s, which generated code calls to read memory that may not be there", k.Release(), f.name)
		}
		*f.to = va
	}
	if va, ok := k.Addr("stack_trace_save_regs"); ok && k.InText(va) {
		a.Callers = va
	}
	a.Columns = k.columns()
	if _, ok := k.Addr("nmi_nesting"); ok { // it has its own variable since the count has less room for it
		a.HardirqShift = 24
	}
	a.WidePreempt = t.varSize("__preempt_count") == 8
	return a, nil
}

// Clock gives a function that turns a CPU's time-stamp counter into nanoseconds of
// sched_clock, which is the time in the guest's own trace files ("local") and, but for a
// constant, in its log. The function reads the kernel's factors anew at each call
// (arch/x86/kernel/tsc.c, struct cyc2ns) and may be called at any time. Where the kernel does
// not take its clock from the counter, the time is the counter's by tsc_khz. Errors: ENOENT.
func (k *Kernel) Clock() (func(tsc uint64, cpu int) uint64, error) {
	if !k.usesTSC() {
		return k.plainClock()
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	c2, err := newCyc2ns(t)
	if err != nil {
		return nil, err
	}
	var mem [][]byte
	for cpu := range k.CPUs() {
		va, err := k.perCPU("cyc2ns", cpu)
		if err != nil {
			return nil, err
		}
		b, err := k.live(va, c2.whole)
		if err != nil {
			return nil, fmt.Errorf("clock of CPU %d: %w", cpu, err)
		}
		mem = append(mem, b)
	}
	return func(tsc uint64, cpu int) uint64 {
		if cpu < 0 || cpu >= len(mem) {
			return 0
		}
		return c2.time(mem[cpu], tsc)
	}, nil
}

// cyc2ns is where struct cyc2ns and its two copies of the factors have their members.
type cyc2ns struct{ data, seq, mul, shift, offset, size, whole int }

func newCyc2ns(t *Types) (c cyc2ns, err error) {
	o, d := &offsets{t: t, typ: "cyc2ns"}, &offsets{t: t, typ: "cyc2ns_data"}
	c.data, c.seq = int(o.of("data")), int(o.of("seq"))
	c.mul, c.shift, c.offset = int(d.of("cyc2ns_mul")), int(d.of("cyc2ns_shift")), int(d.of("cyc2ns_offset"))
	var err1, err2 error
	c.size, err1 = t.Size("cyc2ns_data")
	c.whole, err2 = t.Size("cyc2ns")
	if err := cmp.Or(o.err, d.err, err1, err2); err != nil {
		return c, err
	}
	if c.data+2*c.size > c.whole || c.seq+4 > c.whole || max(c.mul, c.shift)+4 > c.size || c.offset+8 > c.size || c.whole > pageSize {
		return c, errno.Errorf(syscall.EINVAL, "the kernel's struct cyc2ns is not as it is known")
	}
	return c, nil
}

// time converts by the copy that the sequence count names, which the kernel does not write.
func (c cyc2ns) time(b []byte, tsc uint64) uint64 {
	const tries = 64 // the count changes when the clock is calibrated anew: seldom
	var m, sh uint32
	var off uint64
	for range tries {
		s := le32(b, c.seq)
		at := b[c.data+int(s&1)*c.size:]
		m, sh, off = le32(at, c.mul), le32(at, c.shift)&63, le64(at, c.offset)
		if le32(b, c.seq) == s {
			break
		}
	}
	hi, lo := bits.Mul64(tsc, uint64(m))
	return off + (lo>>sh | hi<<1<<(63-sh))
}

// usesTSC says whether sched_clock is the time-stamp counter's.
func (k *Kernel) usesTSC() bool {
	va, ok := k.Addr("__use_tsc")
	if !ok {
		return false
	}
	on, err := k.u32(va)
	return err == nil && on != 0
}

func (k *Kernel) plainClock() (func(tsc uint64, cpu int) uint64, error) {
	va, ok := k.Addr("tsc_khz")
	if !ok {
		return nil, errno.Errorf(syscall.ENOENT, "the guest's kernel has no tsc_khz: its time-stamp counter's rate is not known")
	}
	khz, err := k.u32(va)
	if err != nil || khz == 0 {
		return nil, errno.Errorf(syscall.ENOENT, "the guest's kernel does not know the rate of its time-stamp counter (tsc_khz is 0)")
	}
	return func(tsc uint64, _ int) uint64 {
		hi, lo := bits.Mul64(tsc, 1_000_000)
		if hi >= uint64(khz) {
			return 0
		}
		q, _ := bits.Div64(hi, lo, uint64(khz))
		return q
	}, nil
}

// live gives the memory itself at a kernel address, which must lie in one page.
func (k *Kernel) live(va uint64, n int) ([]byte, error) {
	pa, left, _, ok := k.Translate(va)
	if !ok || left < uint64(n) {
		return nil, k.fault(va)
	}
	b := k.mem.Bytes(pa, n)
	if b == nil {
		return nil, k.fault(va)
	}
	return b, nil
}

// word reads 8 bytes of a buffer of live memory.
func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
