package process

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Tracer names who traces the process: a debugger, whose breakpoints may fall into our patches; "":
// nobody, or this process itself.
func (t *Target) Tracer() string {
	st, err := t.p.Status()
	if err != nil || st.TracerPID == 0 || t.held.Load() != nil {
		return ""
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.TracerPID))
	if err != nil {
		return ""
	}
	by, err := procfs.ParseStatus(string(b))
	if err != nil || by.TGID == os.Getpid() {
		return ""
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", by.TGID))
	return fmt.Sprintf("%s (process %d)", procfs.Escape(strings.TrimSpace(string(comm))), by.TGID)
}

// Yield puts the program's own bytes back at sites while somebody else has stopped all threads, and says
// whether that is so: we can not stop them, but none of them stands inside the bytes of a patch, which is one
// instruction. The breakpoints of who has stopped them stay. A byte of our patch that a debugger puts
// back where its breakpoint was is put right again by the next call.
func (t *Target) Yield(sites []*target.Site) (bool, error) {
	if !t.allTraced() {
		return false, nil
	}
	for _, s := range sites {
		have := make([]byte, len(s.Patch))
		if err := t.p.ReadMem(s.Addr, have); err != nil {
			return false, err
		}
		want, ok := patch.Without(s, have, patch.Breakpoint)
		if !ok || bytes.Equal(have, want) {
			continue
		}
		if err := t.p.WriteMem(s.Addr, want); err != nil {
			return false, err
		}
	}
	return true, nil
}

// allTraced says whether every thread stands in a stop of its tracer.
func (t *Target) allTraced() bool {
	tids, err := t.p.Tasks()
	if err != nil || len(tids) == 0 {
		return false
	}
	for _, tid := range tids {
		if st, err := t.p.TaskStatus(tid); err != nil || st.State != "t" {
			return false
		}
	}
	return true
}
