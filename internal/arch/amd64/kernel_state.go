package amd64

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"kprobes.dev/kprobes/internal/arch"
)

// Bits of a preemption count (include/linux/preempt.h) and of EFLAGS. The highest bit of the former
// is PREEMPT_NEED_RESCHED, inverted: no other task is to run.
const (
	preemptDepth   = 0xff   // depth of preempt_disable
	preemptServing = 1 << 8 // a softirq is served
	preemptBHOff   = 0xfe00 // softirqs are disabled, by depth

	flagIF = 1 << 9
)

// hardirqShift is arch.Kernel's HardirqShift; no kernel is one with the usual layout.
func hardirqShift(k *arch.Kernel) uint8 {
	if k == nil || k.HardirqShift == 0 {
		return 16
	}
	return k.HardirqShift
}

// KernelContext gives the characters that a line of ftrace has behind the CPU, as
// print_lat_fmt of kernel/trace/trace_output.c, Linux 5.10 to 6.18, from what a record holds. What
// the columns do not fill is 0. No kernel is one with arch.KernelColumns and the usual layout.
//
//	d  interrupts off, b softirqs off, D both; the latter two since 5.18
//	N  another task is to run. The kernel has two marks for it, which it sets together; only
//	   that of the preemption count is recorded, so n and p are not told from N.
//	h  in an interrupt, s in a softirq, H in an interrupt on top of a softirq, z in an NMI,
//	   Z in an NMI on top of an interrupt
//	1  to f: the depth of preempt_disable
//	.  of what is not recorded: migrate-disable, and the lazy columns of PREEMPT_RT
func KernelContext(k *arch.Kernel, preempt, eflags uint32) (c [arch.MaxKernelColumns]byte) {
	columns := arch.KernelColumns
	if k != nil && k.Columns != nil {
		columns = k.Columns
	}
	for i, col := range columns[:min(len(columns), len(c))] {
		switch col {
		case arch.ColumnIRQs:
			c[i] = irqsOff(0, eflags)
		case arch.ColumnIRQsBH:
			c[i] = irqsOff(preempt, eflags)
		case arch.ColumnResched:
			c[i] = ".N"[^preempt>>31]
		case arch.ColumnInterrupt:
			c[i] = inInterrupt(preempt, hardirqShift(k))
		case arch.ColumnDepth:
			c[i] = ".123456789abcdef"[min(preempt&preemptDepth, 0xf)]
		default:
			c[i] = '.'
		}
	}
	return c
}

// irqsOff is the first column.
func irqsOff(preempt, eflags uint32) byte {
	switch off, bhOff := eflags&flagIF == 0, preempt&preemptBHOff != 0; {
	case off && bhOff:
		return 'D'
	case off:
		return 'd'
	case bhOff:
		return 'b'
	}
	return '.'
}

// inInterrupt is the column hardirq/softirq.
func inInterrupt(preempt uint32, shift uint8) byte {
	const bits, noResched = 0xf, 1 << 31
	hard, nmi := preempt>>shift&bits != 0, preempt&^noResched>>(shift+4)&bits != 0
	switch soft := preempt&preemptServing != 0; {
	case nmi && hard:
		return 'Z'
	case nmi:
		return 'z'
	case hard && soft:
		return 'H'
	case hard:
		return 'h'
	case soft:
		return 's'
	}
	return '.'
}

// KernelTasks reads what a kernel's records have at their start. The zero value is ready. It
// is not safe for use by several goroutines.
type KernelTasks struct {
	Kernel *arch.Kernel // whose context it is, see KernelContext

	names map[[16]byte]string
}

// maxTaskNames bounds the names that are remembered: a guest may make up any number.
const maxTaskNames = 4096

// Read gives the task's name, without control bytes, and the context (KernelContext) of a
// record; ok is false if it is too short to be a kernel's. It allocates only for names that
// it has not seen.
func (k *KernelTasks) Read(rec []byte) (comm string, context [arch.MaxKernelColumns]byte, ok bool) {
	if len(rec) < KernelRecord {
		return "", context, false
	}
	context = KernelContext(k.Kernel, binary.LittleEndian.Uint32(rec[KernelPreempt:]), binary.LittleEndian.Uint32(rec[KernelFlags:]))
	raw := [16]byte(rec[KernelComm:])
	comm, known := k.names[raw]
	if !known {
		comm = taskName(raw)
		if k.names == nil || len(k.names) >= maxTaskNames {
			k.names = map[[16]byte]string{}
		}
		k.names[raw] = comm
	}
	return comm, context, true
}

// taskName is a task's name up to its NUL, control bytes escaped and what is not UTF-8
// replaced. A task without a name is <...>, as ftrace prints one that it does not know.
func taskName(raw [16]byte) string {
	name, _, _ := bytes.Cut(raw[:], []byte{0})
	if len(name) == 0 {
		return "<...>"
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(string(name), "?") {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			fmt.Fprintf(&b, `\x%02x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
