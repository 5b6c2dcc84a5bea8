package amd64

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// Bits of a preemption count (include/linux/preempt.h) and of EFLAGS.
const (
	preemptDepth   = 0xff      // depth of preempt_disable
	preemptServing = 1 << 8    // a softirq is served
	preemptBHOff   = 0xfe00    // softirqs are disabled, by depth
	preemptHardirq = 0xf << 16 // hard interrupts
	preemptNMI     = 0xf << 20 // NMIs
	preemptNotNow  = 1 << 31   // PREEMPT_NEED_RESCHED, inverted: no other task is to run

	flagIF = 1 << 9
)

// KernelContext gives the five characters that a line of ftrace has behind the CPU (G46), as
// print_lat_fmt of kernel/trace/trace_output.c, Linux 6.1 to 6.18, from what a record holds:
//
//	d  interrupts off, b softirqs off, D both
//	N  another task is to run. The kernel has two marks for it, which it sets together; only
//	   that of the preemption count is recorded, so n and p are not told from N.
//	h  in an interrupt, s in a softirq, H in an interrupt on top of a softirq, z in an NMI,
//	   Z in an NMI on top of an interrupt
//	1  to f: the depth of preempt_disable
//	.  of migrate_disable: it is not recorded
func KernelContext(preempt, eflags uint32) [5]byte {
	c := [5]byte{'.', '.', '.', '.', '.'}
	switch irqsOff, bhOff := eflags&flagIF == 0, preempt&preemptBHOff != 0; {
	case irqsOff && bhOff:
		c[0] = 'D'
	case irqsOff:
		c[0] = 'd'
	case bhOff:
		c[0] = 'b'
	}
	if preempt&preemptNotNow == 0 {
		c[1] = 'N'
	}
	switch hard, soft := preempt&preemptHardirq != 0, preempt&preemptServing != 0; {
	case preempt&preemptNMI != 0 && hard:
		c[2] = 'Z'
	case preempt&preemptNMI != 0:
		c[2] = 'z'
	case hard && soft:
		c[2] = 'H'
	case hard:
		c[2] = 'h'
	case soft:
		c[2] = 's'
	}
	if depth := min(preempt&preemptDepth, 0xf); depth > 0 {
		c[3] = "0123456789abcdef"[depth]
	}
	return c
}

// KernelTasks reads what a kernel's records have at their start. The zero value is ready. It
// is not safe for use by several goroutines.
type KernelTasks struct {
	names map[[16]byte]string
}

// maxTaskNames bounds the names that are remembered: a guest may make up any number.
const maxTaskNames = 4096

// Read gives the task's name, without control bytes, and the context (KernelContext) of a
// record; ok is false if it is too short to be a kernel's. It allocates only for names that
// it has not seen.
func (k *KernelTasks) Read(rec []byte) (comm string, context [5]byte, ok bool) {
	if len(rec) < KernelRecord {
		return "", context, false
	}
	context = KernelContext(binary.LittleEndian.Uint32(rec[KernelPreempt:]), binary.LittleEndian.Uint32(rec[KernelFlags:]))
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
