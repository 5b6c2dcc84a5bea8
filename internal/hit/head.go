package hit

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Header is the head of a trace file (kernel/trace/trace.c, Linux 6.18), where entries in
// the buffer and written are the same, with the number of CPUs.
func Header(entries uint64, cpus int) string { return HeaderOf(entries, entries, cpus) }

// HeaderOf is Header where the buffer did not keep all that was written.
func HeaderOf(entries, written uint64, cpus int) string {
	return headerOf(entries, written, cpus, "", "  ", "")
}

// headerOf is HeaderOf with a column more: so much room, with its name, and a bar below the name.
func headerOf(entries, written uint64, cpus int, room, name, bar string) string {
	return fmt.Sprintf(`# tracer: nop
#
# entries-in-buffer/entries-written: %[1]d/%[2]d   #P:%[3]d
#
#                                %[4]s_-----=> irqs-off/BH-disabled
#                               %[4]s/ _----=> need-resched
#                              %[4]s| / _---=> hardirq/softirq
#                              %[4]s|| / _--=> preempt-depth
#                              %[4]s||| / _-=> migrate-disable
#                              %[4]s|||| /     delay
#           TASK-PID  %[5]s CPU#  |||||  TIMESTAMP  FUNCTION
#              | |    %[6]s     |   |||||     |         |
`, entries, written, cpus, room, name, bar)
}

// Header is HeaderOf with the columns that the printer prints; "" if it has none.
func (p *Printer) Header(entries, written uint64, cpus int) string {
	switch {
	case p.NoContext:
		return ""
	case p.NoFlags:
		name, bar := "", ""
		if p.TGID != nil {
			name, bar = "   TGID   ", "     |    "
		}
		return fmt.Sprintf(`# tracer: nop
#
# entries-in-buffer/entries-written: %d/%d   #P:%d
#
#           TASK-PID    %s CPU#     TIMESTAMP  FUNCTION
#              | |      %s   |         |         |
`, entries, written, cpus, name, bar)
	case p.TGID != nil:
		return headerOf(entries, written, cpus, "          ", "     TGID   ", "       |  ")
	}
	return HeaderOf(entries, written, cpus)
}

// Head appends what a line begins with: %16s-%-7d [%03d] ..... %5d.%06d: %s: of comm,
// thread, CPU, context, seconds, microseconds and event. It allocates nothing.
func (p *Printer) Head(dst []byte, h *Hit, name string) []byte {
	if !p.NoContext {
		dst = p.context(dst, h)
	}
	return append(append(dst, name...), ": "...)
}

// context appends who was hit, where and when.
func (p *Printer) context(dst []byte, h *Hit) []byte {
	comm := p.comm(h)
	for n := utf8.RuneCountInString(comm); n < 16; n++ {
		dst = append(dst, ' ')
	}
	dst = append(append(dst, comm...), '-')
	end := len(dst) + 7
	dst = strconv.AppendInt(dst, int64(h.TID), 10)
	for len(dst) < end {
		dst = append(dst, ' ')
	}
	if p.TGID != nil {
		dst = appendTGID(dst, p.TGID(h.TID))
	}
	dst = appendPadded(append(dst, " ["...), uint64(h.CPU), 3, '0')
	dst = append(dst, "] "...)
	if c := h.context(); len(c) == 0 && !p.NoFlags {
		dst = append(dst, "....."...)
	} else if !p.NoFlags {
		dst = append(dst, c...)
	}
	dst = appendPadded(append(dst, ' '), h.Nanos/1e9, 5, ' ')
	dst = appendPadded(append(dst, '.'), h.Nanos%1e9/1000, 6, '0')
	return append(dst, ": "...)
}

// appendTGID appends the column of a process.
func appendTGID(dst []byte, tgid int) []byte {
	if tgid == 0 {
		return append(dst, " (-------)"...)
	}
	return append(appendPadded(append(dst, " ("...), uint64(tgid), 7, ' '), ')')
}

// comm is the name of the thread that hit.
func (p *Printer) comm(h *Hit) string {
	if h.Comm != "" {
		return h.Comm
	}
	return p.Names.Comm(h.TID)
}

// appendPadded appends a number of at least so many characters.
func appendPadded(dst []byte, v uint64, width int, pad byte) []byte {
	digits := 1
	for n := v; n >= 10; n /= 10 {
		digits++
	}
	for ; digits < width; digits++ {
		dst = append(dst, pad)
	}
	return strconv.AppendUint(dst, v, 10)
}
