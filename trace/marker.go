package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
)

// markEvent is what the lines of Mark say that they are of.
var markEvent = &hit.Event{Group: "ftrace", Name: "tracing_mark_write", Message: true}

// maxMark is how much text one record of Mark takes, in bytes: what a page of the kernel's ring buffer has room for, behind the headers of
// the page, the record and the event, with a newline and a zero byte (tracing_mark_write in kernel/trace/trace.c, Linux 6.18).
const maxMark = 4096 - 16 - 8 - 16 - 2

// Mark writes text to the buffer in the name of a thread, as a write to trace_marker does, and tells how much of it was taken: at most
// 4,054 bytes. What stands behind a zero byte is not shown, nor is the newline at the end. EBADF: tracing is off, or the thread's CPU is
// not in the mask of SetCPUMask; EINVAL: the option markers is off.
func (in *Instance) Mark(tid int, text string) (n int, err error) {
	text = text[:min(len(text), maxMark)]
	line, _, _ := strings.Cut(text, "\x00")
	if err := in.mark(tid, markEvent, strings.TrimSuffix(line, "\n"), text == ""); err != nil {
		return 0, err
	}
	return len(text), nil
}

// maxRawMark is how many bytes one record of MarkRaw takes (TRACE_MARKER_MAX_SIZE in kernel/trace/trace.c, Linux 6.18).
const maxRawMark = 4096

// MarkRaw writes data to the buffer in the name of a thread, as a write to trace_marker_raw does: a number of 4 bytes, and what belongs
// to it, 4,096 bytes in all. They are shown as # NUMBER buf: BYTES, in hexadecimal digits. EINVAL: there are fewer than 4 bytes, or too many; the others as
// those of Mark.
func (in *Instance) MarkRaw(tid int, data string) (n int, err error) {
	const number = 4
	if len(data) < number || len(data) > maxRawMark {
		return 0, errno.Errorf(unix.EINVAL, "%d bytes: a number of 4 bytes is taken, and behind it up to %d", len(data), maxRawMark-number)
	}
	id := binary.NativeEndian.Uint32([]byte(data))
	e := &hit.Event{Group: markEvent.Group, Name: fmt.Sprintf("# %x buf", id), Message: true}
	if err := in.mark(tid, e, fmt.Sprintf("% x", data[number:]), false); err != nil {
		return 0, err
	}
	return len(data), nil
}

// mark puts a line into the buffer; none says that there is nothing to put.
func (in *Instance) mark(tid int, e *hit.Event, line string, none bool) error {
	switch {
	case !in.has(OptionMarkers):
		return errno.Errorf(unix.EINVAL, "the option markers is off")
	case !in.Tracing():
		return errno.Errorf(unix.EBADF, "tracing is off: write 1 to tracing_on first")
	case none:
		return nil
	}
	cpu, comm := onCPU(tid)
	if cpu >= in.cpus() {
		cpu = 0 // of a guest, which has fewer
	}
	if !in.taken(cpu) {
		return errno.Errorf(unix.EBADF, "CPU %d is not in tracing_cpumask", cpu)
	}
	in.drain() // what was hit before stands before it
	in.buf.Add(&hit.Hit{Event: e, Nanos: in.now(), CPU: cpu, TID: tid, Comm: comm, Rec: []byte(line)})
	in.buf.Wake()
	return nil
}

// onCPU tells on which CPU a thread ran last, and its name. One that is gone was on CPU 0 (proc_pid_stat(5)).
func onCPU(tid int) (cpu int, comm string) {
	const processor = 39 // the field's number, from 1
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", tid))
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if err != nil || open < 0 || end < open {
		return 0, noComm
	}
	if f := bytes.Fields(b[end+1:]); len(f) > processor-3 {
		cpu, _ = strconv.Atoi(string(f[processor-3])) // it is a number
	}
	return cpu, printable(string(b[open+1 : end]))
}
