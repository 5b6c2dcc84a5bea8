package ptrace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// procFile reads a small file of a process directory, which names a process and not a
// number.
func procFile(dir *os.File, name string) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	b := make([]byte, 8192) // status has some 1,500 bytes, and comes in one read
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// tasksIn lists the threads of a process directory.
func tasksIn(dir *os.File) ([]int, error) {
	fd, err := unix.Openat(int(dir.Fd()), "task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "task")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	return numbers(names), err
}

// numbers picks the names that are ids.
func numbers(names []string) []int {
	ids := make([]int, 0, len(names))
	for _, n := range names {
		if id, err := strconv.Atoi(n); err == nil && id > 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *Process) statusIn(g *group, tid int) (*procfs.Status, error) {
	text, err := procFile(g.dir, fmt.Sprintf("task/%d/status", tid))
	if err != nil {
		return nil, p.Gone(err)
	}
	return procfs.ParseStatus(text)
}

// worker says whether a thread is the kernel's own, such as those of io_uring.
func (p *Process) worker(g *group, tid int) (bool, error) {
	text, err := procFile(g.dir, fmt.Sprintf("task/%d/stat", tid))
	if err != nil {
		return false, p.Gone(err)
	}
	st, err := procfs.ParseStat(text)
	if err != nil {
		return false, err
	}
	return st.Flags&(procfs.FlagIOWorker|procfs.FlagUserWorker|procfs.FlagKernel) != 0, nil
}

// statusOf reads the status of a thread by its id.
func statusOf(tid int) (*procfs.Status, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return nil, err
	}
	return procfs.ParseStatus(string(b))
}

// Statuses reads the status of every thread, which takes some 10 us each: before a stop.
func (p *Process) Statuses() (map[int]*procfs.Status, error) {
	tids, err := p.Tasks()
	if err != nil {
		return nil, err
	}
	all := make(map[int]*procfs.Status, len(tids))
	for _, tid := range tids {
		if st, err := p.statusIn(&group{p.pid, p.dir}, tid); err == nil { // else it has ended
			all[tid] = st
		}
	}
	return all, nil
}

// NoteRunning notes which threads run.
func (p *Process) NoteRunning(all map[int]*procfs.Status) {
	p.ran = map[int]bool{}
	for tid, st := range all {
		if st.State == "R" {
			p.ran[tid] = true
		}
	}
}

// describe says what a thread is waiting for.
func (p *Process) describe(g *group, tid int) StuckThread {
	t := StuckThread{TID: tid, State: "?"}
	if st, err := p.statusIn(g, tid); err == nil {
		t.Comm, t.State = procfs.Escape(st.Name), st.State
	}
	if w, err := procFile(g.dir, fmt.Sprintf("task/%d/wchan", tid)); err == nil && w != "0" {
		t.Wchan = procfs.Escape(w)
	}
	if c, err := procFile(g.dir, fmt.Sprintf("task/%d/syscall", tid)); err == nil {
		if nr, _, _ := strings.Cut(strings.TrimSpace(c), " "); nr != "running" && nr != "-1" {
			t.Syscall = procfs.Escape(nr)
		}
	}
	return t
}

// processOf gives the process of a thread, or the same number if it is gone.
func processOf(tid int) int {
	if st, err := statusOf(tid); err == nil {
		return st.TGID
	}
	return tid
}

// comm names a process for a message.
func comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "gone"
	}
	return procfs.Escape(strings.TrimSuffix(string(b), "\n"))
}

// pids lists the processes that are seen from here.
func pids() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return numbers(names), err
}

const kcmpVM = 1 // KCMP_VM (linux/kcmp.h)

// sharesMemory asks the kernel whether two threads run on the same memory. What may not
// be asked about does not.
func sharesMemory(a, b int) bool {
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return e == 0 && r == 0
}

// findSharers looks for processes that were cloned with the memory of the stopped one
// (CLONE_VM without CLONE_THREAD), and adds them to those to be stopped.
func (s *Stopped) findSharers() (more bool, err error) {
	one := s.anyStopped()
	if one == 0 {
		return false, nil
	}
	all, err := pids()
	if err != nil {
		return false, err
	}
	for _, pid := range all {
		if s.hasGroup(pid) || !sharesMemory(one, pid) {
			continue
		}
		dir, err := os.OpenFile("/proc/"+strconv.Itoa(pid), unix.O_DIRECTORY|unix.O_PATH, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("process %d, which shares the memory: %w", pid, err)
		}
		s.groups = append(s.groups, &group{pid, dir})
		more = true
	}
	return more, nil
}

// anyStopped gives a thread that stays what it is: one that has stopped, or is parked.
func (s *Stopped) anyStopped() int {
	for tid, t := range s.known {
		if t != nil && (t.stopped || t.parked) {
			return tid
		}
	}
	return 0
}

func (s *Stopped) hasGroup(pid int) bool {
	for _, g := range s.groups {
		if g.pid == pid {
			return true
		}
	}
	return false
}

// Children lists the processes that a thread of this one has started and that are not
// waited for yet.
func (p *Process) Children() ([]int, error) {
	tids, err := p.Tasks()
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", p.pid, err)
	}
	var pids []int
	for _, tid := range tids {
		text, err := p.ReadFile(fmt.Sprintf("task/%d/children", tid))
		if err != nil {
			continue // the thread has ended: its children went to another
		}
		pids = append(pids, numbers(strings.Fields(string(text)))...)
	}
	return pids, nil
}

// Mapping lists the processes that have a file mapped, among those that run the same
// program file as this one: its fork children and theirs, whoever their parent is now. The
// process itself is left out, and so are we, who have the ring mapped too. Those that we
// may not look into are not found.
func (p *Process) Mapping(file procfs.FileID) ([]int, error) {
	all, err := pids()
	if err != nil {
		return nil, err
	}
	var found []int
	for _, pid := range all {
		if pid != p.pid && pid != os.Getpid() && sameExe(pid, p.image.Exe) && hasMapped(pid, file) {
			found = append(found, pid)
		}
	}
	return found, nil
}

func sameExe(pid int, exe procfs.FileID) bool {
	var st unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st)
	return err == nil && FileID(&st) == exe
}

func hasMapped(pid int, file procfs.FileID) bool {
	maps, err := procfs.MapsOf(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return false
	}
	for _, m := range maps {
		if m.FileID == file && !m.Anonymous() {
			return true
		}
	}
	return false
}
