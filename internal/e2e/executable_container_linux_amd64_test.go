package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// container is one of runc's: a program, and a directory that it writes to, in namespaces and control groups of their own.
type container struct {
	t     *testing.T
	id    string
	root  string // its file system
	state string // runc's directory
}

// newContainer prepares a container whose program is prog, and whose control groups lie where Docker has them, below another name.
func newContainer(t *testing.T, prog string) *container {
	t.Helper()
	dir := t.TempDir()
	c := &container{t: t, id: strings.Repeat(fmt.Sprintf("%08x", os.Getpid()), 8), root: filepath.Join(dir, "rootfs"), state: filepath.Join(dir, "state")}
	group := fmt.Sprintf("/kprobe-x-%d", os.Getpid())
	type object map[string]any
	var spaces []object
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount"} {
		spaces = append(spaces, object{"type": kind})
	}
	config, err := json.Marshal(object{
		"ociVersion": "1.0.0",
		"process":    object{"user": object{"uid": 0, "gid": 0}, "args": []string{"/prog"}, "cwd": "/"},
		"root":       object{"path": "rootfs"},
		"mounts":     []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux":      object{"cgroupsPath": group + "/" + c.id, "namespaces": spaces},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"proc", "work"} {
		if err := os.MkdirAll(filepath.Join(c.root, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(prog)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.root, "prog"), b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.runc("delete", "--force", c.id)
		left, _ := filepath.Glob("/sys/fs/cgroup/*" + group)
		for _, dir := range append(left, "/sys/fs/cgroup"+group) {
			_ = os.Remove(dir)
		}
	})
	return c
}

func (c *container) args(args ...string) []string {
	return append([]string{"--root", c.state}, args...)
}

func (c *container) runc(args ...string) ([]byte, error) {
	return exec.Command("runc", c.args(args...)...).CombinedOutput()
}

// start starts the container, whose program says that it is ready, and gives its id outside.
func (c *container) start() (p *testprog.Proc, pid int) {
	c.t.Helper()
	p = testprog.Start(c.t, "runc", c.args("run", "--bundle", filepath.Dir(c.root), c.id)...)
	out, err := c.runc("state", c.id)
	var st struct{ PID int }
	if err == nil {
		err = json.Unmarshal(out, &st)
	}
	if err != nil {
		c.t.Fatalf("runc state: %v: %s", err, out)
	}
	return p, st.PID
}

// Of the processes that run a file those of a container count, its first one and those that come, and not those of the same file outside.
func TestExecutableContainer(t *testing.T) {
	tool(t, "runc", "runc")
	c := newContainer(t, testprog.Build(t, "brief", "-static"))
	outside := testprog.Start(t, filepath.Join(c.root, "prog"))
	p, pid := c.start()
	for _, verb := range [][]string{
		{"stat", "-x", fmt.Sprintf("/proc/%d/root/prog", pid), "--container", c.id},
		{"stat", "-x", outside.Path, "--container", c.id[:12]},
		{"trace", "--counters", "-x", fmt.Sprintf("/proc/%d/root/prog", pid), "--container", c.id},
	} {
		t.Run(strings.Join(verb[:1], " "), func(t *testing.T) {
			s := &session{t: t, pid: pid}
			s.start(command(t, append(verb, "p:a brief_work")...))
			s.armed()
			b := newBriefs(t, outside.Path)
			b.run(3, 1)
			right(t, outside, "go 7")
			for i := range 3 {
				if out, err := c.runc("exec", c.id, "/prog", "/work/counts", fmt.Sprint(20+i)); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			}
			right(t, p, "go 30")
			s.interrupt()
			r := s.wait()
			if r.code != 0 || standing(pid) {
				t.Errorf("status %d, or probes are left: %v", r.code, r.outcome)
			}
			r.counted(t, "a", 30+20+21+22, "jump")
			if all, first, ran, _ := met(t, r.stderr); all != 4 || ran != 1 || first != 3 {
				t.Errorf("%d processes, %d of them first, %d ran, want 4, 3 and 1: %v", all, first, ran, r.outcome)
			}
		})
	}
	of, sum := (&briefs{t: t, file: filepath.Join(c.root, "work", "counts")}).counted()
	if sum != 3*(20+21+22) {
		t.Errorf("the processes of the container have counted %d: %v", sum, of)
	}
	p.Quit(nil)
}
