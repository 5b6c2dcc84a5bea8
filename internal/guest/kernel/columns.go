package kernel

import (
	"bytes"

	"kprobes.dev/kprobes/internal/arch"
)

// maxReadOnly bounds the kernel's constants that are looked through, in bytes; Debian's are 5 to 8 MB.
const maxReadOnly = 64 << 20

// columns gives what the kernel's trace lines have behind the CPU, as the kernel itself says it in the
// head of its trace file (print_func_help_header_irq in kernel/trace/trace.c): the versions, and
// PREEMPT_RT, differ. Each column has a line of its own there:
//
//	#                            %.*s  _-----=> irqs-off/BH-disabled
//	#                            %.*s / _----=> need-resched
//	#                            %.*s| / _---=> hardirq/softirq
//	#                            %.*s|| / _--=> preempt-depth
//	#                            %.*s||| / _-=> migrate-disable
//	#                            %.*s|||| /     delay
//
// It gives nil where they are not found, or are not as here.
func (k *Kernel) columns() []arch.KernelColumn {
	r, ok := k.between("__start_rodata", "__end_rodata")
	if !ok || r.End-r.Start > maxReadOnly {
		return nil
	}
	var lines [arch.MaxKernelColumns + 1][]byte
	begin := []byte("#                            %.*s")
	b := k.mem.Bytes(r.Start-k.image.Start+k.phys, int(r.End-r.Start)) // the image is one piece
	for {
		i := bytes.Index(b, begin)
		if i < 0 {
			break
		}
		b = b[i+len(begin):]
		if line, _, ok := bytes.Cut(b[:min(len(b), 64)], []byte("\n")); ok {
			if n, name := columnOf(line); n >= 0 && n < len(lines) {
				lines[n] = bytes.Clone(name)
			}
		}
	}
	var out []arch.KernelColumn
	for _, name := range lines {
		switch string(name) {
		case "":
			return nil // it ends with the delay
		case "delay":
			return out
		}
		col, known := columnNames[string(name)]
		if !known {
			col = arch.ColumnOther
		}
		out = append(out, col)
	}
	return nil
}

// columnNames are the columns that a record tells; all others are arch.ColumnOther.
var columnNames = map[string]arch.KernelColumn{
	"irqs-off": arch.ColumnIRQs, "irqs-off/BH-disabled": arch.ColumnIRQsBH, "need-resched": arch.ColumnResched,
	"hardirq/softirq": arch.ColumnInterrupt, "preempt-depth": arch.ColumnDepth,
}

// columnOf reads the end of a line of the head: the column's number, and its name.
func columnOf(line []byte) (n int, name []byte) {
	for n < len(line) && line[n] == '|' {
		n++
	}
	rest := line[n:]
	if bytes.HasPrefix(rest, []byte(" /")) {
		n++
	} else if n > 0 {
		return -1, nil
	}
	if _, name, ok := bytes.Cut(rest, []byte("=> ")); ok {
		return n, bytes.TrimSpace(name)
	}
	if bytes.HasSuffix(rest, []byte(" delay")) {
		return n, []byte("delay")
	}
	return -1, nil
}
