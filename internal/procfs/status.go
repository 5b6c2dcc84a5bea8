package procfs

import (
	"fmt"
	"strconv"
	"strings"
)

// Seccomp is a thread's seccomp mode, as proc(5) status shows it.
type Seccomp int

// The modes of seccomp(2).
const (
	SeccompNone   Seccomp = 0
	SeccompStrict Seccomp = 1 // read, write, _exit and sigreturn alone
	SeccompFilter Seccomp = 2
)

// Status is what /proc/PID/status and its like for a thread tell.
type Status struct {
	Name       string // as in the file: \ and newline escaped by the kernel
	State      string // letter: R, S, D, T, t, Z, X
	TGID       int    // process
	TID        int    // thread; the process's own for its first thread
	PPID       int
	TracerPID  int // 0: nobody traces it
	UID, GID   [4]uint32
	NSTGID     []int // process id in each pid namespace, from the reader's to its own
	NSTID      []int // thread id likewise
	Threads    int
	NoNewPrivs bool
	Seccomp    Seccomp
	Filters    int // seccomp filters installed

	// Sets of signals: bit n-1 is signal n.
	SigPnd uint64 // pending for the thread
	ShdPnd uint64 // pending for the process
	SigBlk uint64 // blocked by the thread
	SigIgn uint64 // ignored by the process
	SigCgt uint64 // caught by the process

	ShadowStack bool // the thread runs with a user shadow stack
}

// Blocks says whether the thread blocks signal sig.
func (s *Status) Blocks(sig int) bool { return s.SigBlk>>(sig-1)&1 != 0 }

// Catches says whether the process has a handler for sig.
func (s *Status) Catches(sig int) bool { return s.SigCgt>>(sig-1)&1 != 0 }

// Ignores says whether the process ignores sig.
func (s *Status) Ignores(sig int) bool { return s.SigIgn>>(sig-1)&1 != 0 }

// ParseStatus parses the text of a status file. Lines it does not know are passed over.
func ParseStatus(text string) (*Status, error) {
	s := &Status{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if err := s.take(key, strings.TrimSpace(value)); err != nil {
			return nil, fmt.Errorf("status %s %q: %w", key, value, err)
		}
	}
	if s.TGID == 0 || s.TID == 0 {
		return nil, fmt.Errorf("status: no Tgid or Pid line")
	}
	return s, nil
}

func (s *Status) take(key, v string) (err error) {
	switch key {
	case "Name":
		s.Name = v
	case "State":
		s.State, _, _ = strings.Cut(v, " ")
	case "Tgid":
		s.TGID, err = strconv.Atoi(v)
	case "Pid":
		s.TID, err = strconv.Atoi(v)
	case "PPid":
		s.PPID, err = strconv.Atoi(v)
	case "TracerPid":
		s.TracerPID, err = strconv.Atoi(v)
	case "Threads":
		s.Threads, err = strconv.Atoi(v)
	case "Seccomp":
		var n int
		n, err = strconv.Atoi(v)
		s.Seccomp = Seccomp(n)
	case "Seccomp_filters":
		s.Filters, err = strconv.Atoi(v)
	case "NoNewPrivs":
		s.NoNewPrivs = v == "1"
	case "x86_Thread_features":
		s.ShadowStack = hasWord(v, "shstk")
	default:
		return s.takeSets(key, v)
	}
	return err
}

func (s *Status) takeSets(key, v string) (err error) {
	switch key {
	case "Uid":
		s.UID, err = fourIDs(v)
	case "Gid":
		s.GID, err = fourIDs(v)
	case "NStgid":
		s.NSTGID, err = ints(v)
	case "NSpid":
		s.NSTID, err = ints(v)
	case "SigPnd":
		s.SigPnd, err = strconv.ParseUint(v, 16, 64)
	case "ShdPnd":
		s.ShdPnd, err = strconv.ParseUint(v, 16, 64)
	case "SigBlk":
		s.SigBlk, err = strconv.ParseUint(v, 16, 64)
	case "SigIgn":
		s.SigIgn, err = strconv.ParseUint(v, 16, 64)
	case "SigCgt":
		s.SigCgt, err = strconv.ParseUint(v, 16, 64)
	}
	return err
}

func hasWord(s, word string) bool {
	for _, w := range strings.Fields(s) {
		if w == word {
			return true
		}
	}
	return false
}

func ints(s string) (ns []int, err error) {
	for _, f := range strings.Fields(s) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func fourIDs(s string) (ids [4]uint32, err error) {
	f := strings.Fields(s)
	if len(f) != len(ids) {
		return ids, fmt.Errorf("%d ids, not 4", len(f))
	}
	for i := range ids {
		n, err := strconv.ParseUint(f[i], 10, 32)
		if err != nil {
			return ids, err
		}
		ids[i] = uint32(n)
	}
	return ids, nil
}

// Stat is what this package needs of /proc/PID/stat.
type Stat struct {
	Comm       string // any bytes
	State      byte
	PPID       int
	Flags      uint64 // PF_* of include/linux/sched.h
	Start      uint64 // start time, clock ticks since boot
	StartCode  uint64 // 0 or 1 if the reader may not know
	StartStack uint64
	StartBrk   uint64
}

// The flags of a task that stat shows (include/linux/sched.h, Linux 6.x).
const (
	FlagExiting    = 0x00000004 // PF_EXITING: it ends
	FlagIOWorker   = 0x00000010 // PF_IO_WORKER: io_uring's, never runs the program's code
	FlagUserWorker = 0x00004000 // PF_USER_WORKER: the kernel's, within a user process
	FlagKernel     = 0x00200000 // PF_KTHREAD
)

// ParseStat parses the text of a stat file. The name in it may hold spaces and brackets.
func ParseStat(text string) (*Stat, error) {
	_, rest, ok1 := strings.Cut(text, "(")
	end := strings.LastIndexByte(rest, ')')
	if !ok1 || end < 0 {
		return nil, fmt.Errorf("stat: no name in brackets")
	}
	f := strings.Fields(rest[end+1:]) // f[0] is field 3, state
	if len(f) < 45 || len(f[0]) != 1 {
		return nil, fmt.Errorf("stat: %d fields after the name, want at least 45", len(f))
	}
	s := &Stat{Comm: rest[:end], State: f[0][0]}
	var err error
	if s.PPID, err = strconv.Atoi(f[1]); err != nil {
		return nil, fmt.Errorf("stat: parent: %w", err)
	}
	for _, n := range []struct {
		field int // its number in proc(5)
		to    *uint64
	}{{9, &s.Flags}, {22, &s.Start}, {26, &s.StartCode}, {28, &s.StartStack}, {47, &s.StartBrk}} {
		if *n.to, err = strconv.ParseUint(f[n.field-3], 10, 64); err != nil {
			return nil, fmt.Errorf("stat: field %d: %w", n.field, err)
		}
	}
	return s, nil
}
