package e2e

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/target/process"
)

// state is what of a process must be the same again after a tracer has gone.
type state struct {
	pid     int
	actions string
	masks   map[int]string // by thread: SigBlk
	signals string         // SigIgn and SigCgt
	fds     map[string]string
}

// stateOf looks at a process that nobody has touched.
func stateOf(t testing.TB, pid int) *state {
	t.Helper()
	s := &state{pid: pid, masks: map[int]string{}, fds: map[string]string{}}
	s.signals = handled(t, pid)
	golang := isGo(pid)
	for _, tid := range tasks(t, pid) {
		s.masks[tid] = ownMask(t, pid, tid, golang)
	}
	s.fds = descriptors(t, pid)
	if !strings.HasSuffix(s.signals, "caught 0") {
		s.actions = actionsOf(t, pid)
	}
	return s
}

// libraryMask is what glibc and Go's runtime block around the start of a thread: everything.
const libraryMask = "fffffffffffbfeff"

// isGo says whether a process runs a Go program.
func isGo(pid int) bool {
	_, err := buildinfo.ReadFile(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// ownMask is the signal mask of a thread once the library or the runtime has let go of it.
func ownMask(t testing.TB, pid, tid int, isGo bool) string {
	t.Helper()
	mask := ""
	within(t, fmt.Sprintf("thread %d to have a mask of its own", tid), func() bool {
		mask = field(t, pid, tid, "SigBlk")
		return !passing(t, mask, isGo)
	})
	return mask
}

// passing says whether a thread that begins, ends or starts another has the mask. With cgo a Go
// program's has several then: the C library's own signals, or those that the runtime leaves to it, are
// not blocked. Go code runs with SIGSEGV unblocked always, so that one tells.
func passing(t testing.TB, mask string, isGo bool) bool {
	t.Helper()
	if mask == libraryMask || mask == "" {
		return mask != ""
	}
	bits, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return isGo && bits>>(unix.SIGSEGV-1)&1 != 0
}

// askActions names a process of whose dispositions the test binary is to tell. It is asked by
// a process that is not its parent: a parent's own wait would take the stops for the end.
const askActions = "KPROBES_E2E_ACTIONS"

// actionsOf asks a process for its signal dispositions.
func actionsOf(t testing.TB, pid int) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", askActions, pid))
	o := run(t, cmd)
	if o.code != 0 {
		t.Fatalf("dispositions of process %d: %v", pid, o)
	}
	return o.stdout
}

// tellActions is the other side of actionsOf.
func tellActions(pid string) (err error) {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	p, err := process.Open(n)
	if err != nil {
		return err
	}
	s, err := p.Stop(&ptrace.StopOptions{Attempts: 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Release()) }()
	all, err := s.Dispositions()
	if errors.Is(err, process.ErrSeccomp) {
		return nil // it may not be asked
	}
	if err != nil {
		return err
	}
	for sig, a := range all {
		if a != (ptrace.Sigaction{}) && ownSignals>>(sig-1)&1 == 0 {
			fmt.Printf("%d: %+v\n", sig, a)
		}
	}
	return nil
}

// same checks that nothing of a tracer's is left: bytes, memory, descriptors, dispositions,
// signal masks, stops.
func (s *state) same(t testing.TB) {
	t.Helper()
	s.free(t)
	intact(t, s.pid)
	if got := handled(t, s.pid); got != s.signals {
		t.Errorf("process %d: signals %s, were %s", s.pid, got, s.signals)
	}
	for id, link := range descriptors(t, s.pid) {
		if s.fds[id] == "" && strings.HasPrefix(link, "/memfd:kprobes:") {
			t.Errorf("process %d: descriptor %s is left: %s", s.pid, id, link)
		}
	}
	if s.actions == "" {
		return // it has no handlers, as the kernel's list of those shows
	}
	if diff := cmp.Diff(strings.Split(s.actions, "\n"), strings.Split(actionsOf(t, s.pid), "\n")); diff != "" {
		t.Errorf("process %d: dispositions (-before +after):\n%s", s.pid, diff)
	}
	s.free(t)
}

// ownSignals are those of glibc's own (SIGCANCEL and SIGSETXID, nptl/internaltypes.h), which it
// installs when it first needs them.
const ownSignals = 1<<31 | 1<<32

// handled tells which signals a process ignores and catches.
func handled(t testing.TB, pid int) string {
	t.Helper()
	catches, err := strconv.ParseUint(field(t, pid, pid, "SigCgt"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("ignored %s, caught %x", field(t, pid, pid, "SigIgn"), catches&^ownSignals)
}

// free checks that no thread is held, and that their signal masks are their own again: at
// once, or when they have run on from the call that they were in the middle of.
func (s *state) free(t testing.TB) {
	t.Helper()
	for _, tid := range tasks(t, s.pid) {
		if tracer := field(t, s.pid, tid, "TracerPid"); tracer != "0" && tracer != "" {
			t.Errorf("thread %d is traced by %s", tid, tracer)
		}
		if st := field(t, s.pid, tid, "State"); strings.HasPrefix(st, "t") || strings.HasPrefix(st, "T") {
			t.Errorf("thread %d is left in state %s", tid, st)
		}
		want := s.masks[tid]
		within(t, fmt.Sprintf("signal mask %s of thread %d", want, tid), func() bool {
			got := field(t, s.pid, tid, "SigBlk")
			return want == "" || got == "" || got == want
		})
	}
}

// field reads a line of a thread's status; "" if it has ended.
func field(t testing.TB, pid, tid int, name string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
	if err != nil {
		return ""
	}
	_, after, ok := strings.Cut(string(b), "\n"+name+":")
	if !ok {
		t.Fatalf("no %s in the status of thread %d", name, tid)
	}
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

func tasks(t testing.TB, pid int) []int {
	t.Helper()
	es, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, e := range es {
		var tid int
		if _, err := fmt.Sscan(e.Name(), &tid); err == nil {
			out = append(out, tid)
		}
	}
	return out
}

func descriptors(t testing.TB, pid int) map[string]string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range es {
		if link, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			out[e.Name()] = link
		}
	}
	return out
}

// files holds what the files of executable mappings have, by path.
var files sync.Map

// intact compares every byte of every executable mapping with its file and looks for
// mappings of the tracer's.
func intact(t testing.TB, pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := procfs.ParseMaps(text)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for _, m := range maps {
		if strings.HasPrefix(m.Path, "/memfd:kprobes:") {
			t.Errorf("process %d: mapping %#x of %s is left", pid, m.Start, m.Path)
			continue
		}
		if m.Perm&procfs.PermExec == 0 || m.Anonymous() {
			continue
		}
		have := make([]byte, m.Size())
		if _, err := mem.ReadAt(have, int64(m.Start)); err != nil {
			t.Fatalf("process %d: %s at %#x: %v", pid, m.Path, m.Start, err)
		}
		compare(t, pid, m, have)
	}
}

func compare(t testing.TB, pid int, m procfs.Map, have []byte) {
	t.Helper()
	whole, ok := files.Load(m.Path)
	if !ok {
		b, err := os.ReadFile(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		whole, _ = files.LoadOrStore(m.Path, b)
	}
	want := whole.([]byte)[m.Offset:]
	want = want[:min(len(want), len(have))]
	if bytes.Equal(want, have[:len(want)]) {
		return
	}
	for i := range want {
		if want[i] != have[i] {
			t.Errorf("process %d: %s differs from its file at %#x: % x, not % x", pid, m.Path, m.Start+uint64(i), have[i:min(i+16, len(want))], want[i:min(i+16, len(want))])
			return
		}
	}
}
