package trace

import (
	"bytes"
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
// 4,054 bytes. What stands behind a zero byte is not shown, nor is the newline at the end. EBADF: tracing is off; EINVAL: the option
// markers is off.
func (in *Instance) Mark(tid int, text string) (n int, err error) {
	switch {
	case !in.has(OptionMarkers):
		return 0, errno.Errorf(unix.EINVAL, "the option markers is off")
	case !in.Tracing():
		return 0, errno.Errorf(unix.EBADF, "tracing is off: write 1 to tracing_on first")
	case text == "":
		return 0, nil
	}
	text = text[:min(len(text), maxMark)]
	line, _, _ := strings.Cut(text, "\x00")
	cpu, comm := onCPU(tid)
	if cpu >= in.cpus() {
		cpu = 0 // of a guest, which has fewer
	}
	in.drain() // what was hit before stands before it
	in.buf.Add(&hit.Hit{Event: markEvent, Nanos: in.now(), CPU: cpu, TID: tid, Comm: comm, Rec: []byte(strings.TrimSuffix(line, "\n"))})
	in.buf.Wake()
	return len(text), nil
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
