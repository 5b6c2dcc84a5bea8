package soak

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pipeSize is what the pipe of a program's input holds.
const pipeSize = 1 << 20

// patience bounds every wait for a program.
const patience = 3 * time.Minute

// outcome is what a run has left: status, standard output and error, files.
type outcome struct {
	status         string
	stdout, stderr string
	files          map[string]string
}

// differs tells the first difference of two outcomes; "" if there is none.
func (o *outcome) differs(with *outcome) string {
	for _, p := range []struct{ what, a, b string }{
		{"exit status", o.status, with.status},
		{"standard error", o.stderr, with.stderr},
		{"standard output", o.stdout, with.stdout},
	} {
		if p.a != p.b {
			return fmt.Sprintf("%s: %s", p.what, firstDifference(p.a, p.b))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(with.files)) {
		if got, ok := o.files[name]; !ok || got != with.files[name] {
			return fmt.Sprintf("file %s: %s", name, firstDifference(got, with.files[name]))
		}
	}
	if len(o.files) != len(with.files) {
		return fmt.Sprintf("files %v, without probes %v", slices.Sorted(maps.Keys(o.files)), slices.Sorted(maps.Keys(with.files)))
	}
	return ""
}

func firstDifference(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-40)
	return fmt.Sprintf("from byte %d on %.200q (%d bytes), without probes %.200q (%d bytes)", i, a[from:], len(a), b[from:], len(b))
}

// streams are the standard streams of one run, and where it works.
type streams struct {
	s           *Stage
	dir         string
	in          *os.File // the program's end, to be closed once it runs
	feed        *os.File // ours; nil: the program has no input
	out, errs   *os.File
	outN, errsN string
}

func (s *Stage) streams() (*streams, error) {
	dir, err := s.fresh()
	if err != nil {
		return nil, err
	}
	st := &streams{s: s, dir: dir, outN: filepath.Join(s.dir, "stdout"), errsN: filepath.Join(s.dir, "stderr")}
	if st.out, err = os.Create(st.outN); err == nil {
		st.errs, err = os.Create(st.errsN)
	}
	if err == nil && s.Input != nil {
		if st.in, st.feed, err = os.Pipe(); err == nil {
			_, err = unix.FcntlInt(st.feed.Fd(), unix.F_SETPIPE_SZ, pipeSize)
		}
		if err == nil {
			_, err = st.feed.Write(s.halves[0])
		}
	} else if err == nil {
		st.in, err = os.Open(os.DevNull)
	}
	if err != nil {
		st.close()
	}
	return st, err
}

// started closes the program's ends.
func (st *streams) started() {
	for _, f := range []*os.File{st.in, st.out, st.errs} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (st *streams) close() {
	st.started()
	if st.feed != nil {
		_ = st.feed.Close()
	}
}

// waiting waits until the program has read all that it was given and waits for more, or has
// ended.
func (st *streams) waiting(pid int) error {
	if st.feed == nil {
		return nil
	}
	asleep := 0
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if ended(pid) {
			return nil
		}
		if asleep++; !st.s.Go || !sleeps(pid) {
			asleep = 0
		}
		n, err := unix.IoctlGetInt(int(st.feed.Fd()), unix.TIOCINQ)
		if err != nil {
			return fmt.Errorf("pipe: %w", err)
		}
		if n == 0 && (asleep >= asleepLooks || reads(pid)) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d does not read its input: %d bytes are left", pid, n)
		}
	}
}

// asleepLooks is how often all threads of a Go program must be seen asleep: its scheduler reads
// for it, where nobody else sees it.
const asleepLooks = 5

// rest gives the program the second half of its input, and its end.
func (st *streams) rest() error {
	if st.feed == nil {
		return nil
	}
	_, err := st.feed.Write(st.s.halves[1])
	if errors.Is(err, unix.EPIPE) {
		err = nil // it wants no more
	}
	err = errors.Join(err, st.feed.Close())
	st.feed = nil
	return err
}

// ended says whether a process has ended.
func ended(pid int) bool {
	state := state(fmt.Sprintf("/proc/%d/stat", pid))
	return state == 0 || state == 'Z' || state == 'X'
}

// state is that of a process or thread (proc_pid_stat(5)); 0: it is gone.
func state(path string) byte {
	b, err := os.ReadFile(path)
	i := bytes.LastIndexByte(b, ')')
	if err != nil || i < 0 || i+2 >= len(b) {
		return 0
	}
	return b[i+2]
}

// sleeps says whether every thread of a process sleeps.
func sleeps(pid int) bool {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return err == nil && len(paths) > 0 && !slices.ContainsFunc(paths, func(p string) bool { return state(p) != 'S' })
}

// reads says whether a process sleeps in read(0, …).
func reads(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	return err == nil && bytes.HasPrefix(b, []byte("0 0x0 ")) && state(fmt.Sprintf("/proc/%d/stat", pid)) == 'S'
}

// collect reads what a run has left.
func (st *streams) collect(ps *os.ProcessState) (*outcome, error) {
	o := &outcome{status: ps.String(), files: map[string]string{}}
	for name, to := range map[string]*string{st.outN: &o.stdout, st.errsN: &o.stderr} {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		*to = string(b)
	}
	err := filepath.WalkDir(st.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name := strings.TrimPrefix(path, st.dir+"/")
		if st.s.Ignore != nil && st.s.Ignore.MatchString(name) {
			return nil
		}
		b, err := os.ReadFile(path)
		o.files[name] = string(b)
		return err
	})
	return o, err
}

// command runs a program to its end; middle is called where it waits for the rest of its
// input, and may end it.
func (s *Stage) command(path string, args, env []string, middle func(pid int) error) (*outcome, error) {
	st, err := s.streams()
	if err != nil {
		return nil, err
	}
	defer st.close()
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, st.dir, st.in, st.out, st.errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	st.started()
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	err = st.waiting(cmd.Process.Pid)
	if err == nil && middle != nil {
		err = middle(cmd.Process.Pid)
	}
	if err != nil {
		_ = cmd.Process.Kill()
	}
	err = errors.Join(err, st.rest())
	_ = cmd.Wait() // how it ended is part of the outcome
	if !late.Stop() {
		return nil, fmt.Errorf("%s does not end", cmd)
	}
	if err != nil {
		return nil, err
	}
	return st.collect(cmd.ProcessState)
}

// without runs the program without probes.
func (s *Stage) without() (*outcome, error) { return s.command(s.program, s.args, s.env, nil) }
