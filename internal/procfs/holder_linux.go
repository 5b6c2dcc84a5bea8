package procfs

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is a process that holds another, or itself, for its probes, as the kernel tells it.
type Holder struct {
	PID     int       // in the reader's pid namespace; 0: it lives in one that is not seen from here
	Start   uint64    // start time in clock ticks since boot, proc(5) stat field 22
	Comm    string    // its name, control bytes escaped
	PIDNS   uint64    // inode of its pid namespace, 0 if not readable
	Started time.Time // when it was started, to about a second
}

func (h Holder) String() string {
	if h.PID == 0 {
		return "a process outside this pid namespace"
	}
	return fmt.Sprintf("process %d (%s), started %s", h.PID, h.Comm, h.Started.Format(time.RFC3339))
}

// Same says whether two holders are the same process.
func (h Holder) Same(o Holder) bool {
	return h.PID == o.PID && h.Start == o.Start && h.PIDNS == o.PIDNS
}

// NewHolder describes a process as a holder. What the kernel does not tell stays zero.
func NewHolder(pid int) *Holder {
	h := &Holder{PID: pid}
	if pid <= 0 {
		h.PID = 0
		return h
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	if b, err := os.ReadFile(dir + "stat"); err == nil {
		if st, err := ParseStat(string(b)); err == nil {
			h.Comm, h.Start, h.Started = Escape(st.Comm), st.Start, startedAt(st.Start)
		}
	}
	var ns unix.Stat_t
	if err := unix.Stat(dir+"ns/pid", &ns); err == nil {
		h.PIDNS = ns.Ino
	}
	return h
}

const clockTick = time.Second / 100 // USER_HZ, fixed on x86

// startedAt converts a start time in ticks since boot to the time of day.
func startedAt(ticks uint64) time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(up.Nano()) + time.Duration(ticks)*clockTick).Truncate(time.Second)
}
