package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Holder is a process that has, or had, probes in the kernel. Its instance and its groups
// of events are named after it.
type Holder struct {
	PID   int
	Start uint64 // ticks since boot, of proc(5) starttime: tells it from a later one with its id
	NS    uint64 // the pid namespace that PID belongs to, by its inode
}

// String is the name of the holder's instance.
func (h Holder) String() string { return fmt.Sprintf("kprobe_%d_%d_%d", h.PID, h.Start, h.NS) }

// group names the holder's group number n. The user's groups each have one, so that their
// events can share names.
func (h Holder) group(n int) string { return fmt.Sprintf("%s_%d", h, n) }

// parseHolder tells whose an instance or a group is by its name; ok is false for names that
// are not ours.
func parseHolder(name string) (h Holder, ok bool) {
	rest, ok := strings.CutPrefix(name, "kprobe_")
	f := strings.Split(rest, "_")
	if !ok || len(f) != 3 && len(f) != 4 {
		return h, false
	}
	var n [4]uint64
	for i := range f {
		v, err := strconv.ParseUint(f[i], 10, 63)
		if err != nil || strconv.FormatUint(v, 10) != f[i] {
			return h, false
		}
		n[i] = v
	}
	return Holder{PID: int(n[0]), Start: n[1], NS: n[2]}, true
}

// self is the holder that this process is.
func self() (Holder, error) {
	start, _, err := startOf("self")
	if err != nil {
		return Holder{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return Holder{}, fmt.Errorf("own pid namespace: %w", err)
	}
	return Holder{PID: os.Getpid(), Start: start, NS: st.Ino}, nil
}

// startOf gives the start time of a process and its state (proc(5), /proc/PID/stat).
func startOf(pid string) (start uint64, state string, err error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, "", err
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return 0, "", fmt.Errorf("/proc/%s/stat has %d fields behind the name, not 20", pid, len(f))
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0], err
}

// gone says whether the holder has ended. One of another pid namespace, whose id means
// nothing here, has not.
func (h Holder) gone(me Holder) bool {
	if h.NS != me.NS {
		return false
	}
	start, state, err := startOf(strconv.Itoa(h.PID))
	return err != nil || start != h.Start || state == "Z" || state == "X"
}
