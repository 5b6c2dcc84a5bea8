package headroom

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree writes the files of a machine.
func tree(t *testing.T, files map[string]string) Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Root(dir)
}

const (
	mountV1 = "30 23 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
		"33 30 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	mountV2     = "30 23 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	mountBelow  = "30 23 0:25 /docker/abc /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	mountSpaces = "30 23 0:25 / /sys/fs/c\\040g rw,nosuid - cgroup2 cgroup2 rw\n"
)

func TestCgroup(t *testing.T) {
	for _, c := range []struct {
		what  string
		files map[string]string
		free  uint64 // of the one that leaves least; 0: none limits
		name  string
	}{
		{"none", map[string]string{"proc/7/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2}, 0, ""},
		{"version 2, the leaf", map[string]string{
			"proc/7/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/a/memory.max": "1000000\n", "sys/fs/cgroup/a/memory.current": "10\n",
			"sys/fs/cgroup/a/b/memory.max": "500000\n", "sys/fs/cgroup/a/b/memory.current": "400000\n",
		}, 100000, "/sys/fs/cgroup/a/b, memory.max"},
		{"version 2, the parent", map[string]string{
			"proc/7/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/a/memory.max": "1000000\n", "sys/fs/cgroup/a/memory.current": "999999\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "400000\n",
		}, 1, "/sys/fs/cgroup/a, memory.max"},
		{"page cache can be reclaimed", map[string]string{
			"proc/7/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/a/memory.max": "1000000\n", "sys/fs/cgroup/a/memory.current": "1000000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 400000\ninactive_file 300000\nactive_file 200000\n",
		}, 300000, "memory.max"},
		{"slowed down before the limit", map[string]string{
			"proc/7/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/a/memory.max": "1000000\n", "sys/fs/cgroup/a/memory.high": "600000\n", "sys/fs/cgroup/a/memory.current": "500000\n",
		}, 100000, "memory.high"},
		{"beyond it", map[string]string{
			"proc/7/cgroup": "0::/a\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/a/memory.high": "600000\n", "sys/fs/cgroup/a/memory.current": "700000\n",
		}, 0, "memory.high"},
		{"version 1", map[string]string{
			"proc/7/cgroup": "4:memory:/x\n0::/\n", "proc/self/mountinfo": mountV1,
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "409600\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "400000\n",
			"sys/fs/cgroup/memory/x/memory.stat": "inactive_file 0\ntotal_inactive_file 100\n",
		}, 9700, "/sys/fs/cgroup/memory/x, memory.limit_in_bytes"},
		{"version 1, with swap", map[string]string{
			"proc/7/cgroup": "4:cpu,memory:/x\n", "proc/self/mountinfo": mountV1,
			"sys/fs/cgroup/memory/x/memory.memsw.limit_in_bytes": "409600\n", "sys/fs/cgroup/memory/x/memory.memsw.usage_in_bytes": "409500\n",
		}, 100, "memsw"},
		{"a container that sees its own cgroup as the root", map[string]string{
			"proc/7/cgroup": "0::/docker/abc/svc\n", "proc/self/mountinfo": mountBelow,
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "990\n",
			"sys/fs/cgroup/svc/memory.max": "1000\n", "sys/fs/cgroup/svc/memory.current": "10\n",
		}, 10, "/sys/fs/cgroup, memory.max"},
		{"a process beyond the namespace", map[string]string{
			"proc/7/cgroup": "0::/../other\n", "proc/self/mountinfo": mountV2,
			"sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "900\n",
		}, 100, "/sys/fs/cgroup, memory.max"},
		{"a mount point with a space", map[string]string{
			"proc/7/cgroup": "0::/\n", "proc/self/mountinfo": mountSpaces,
			"sys/fs/c g/memory.max": "1000\n", "sys/fs/c g/memory.current": "900\n",
		}, 100, "/sys/fs/c g, memory.max"},
	} {
		l, ok := tree(t, c.files).Cgroup(7)
		if ok != (c.name != "") || l.Free() != c.free || !strings.HasSuffix(l.Name, c.name) && !strings.Contains(l.Name, c.name) {
			t.Errorf("%s: %v, %+v: free %d, want %d of %q", c.what, ok, l, l.Free(), c.free, c.name)
		}
	}
}

// machine are files of one with much of everything, and a process 7 that is traced by 8.
func machine(more map[string]string) map[string]string {
	files := map[string]string{
		"proc/self/mountinfo": mountV2, "proc/7/cgroup": "0::/a/b\n", "proc/8/cgroup": "0::/a/c\n",
		"proc/meminfo":  "MemTotal: 100000 kB\nMemAvailable: 90000 kB\nCommitLimit: 1000 kB\nCommitted_AS: 900 kB\n",
		"proc/7/status": "Name:\tx\nVmSize:\t   5000 kB\nVmLck:\t    8 kB\nVmData:\t   700 kB\nCapEff:\t0000000000000000\n",
		"proc/7/limits": "Limit                     Soft Limit           Hard Limit           Units\n" +
			"Max data size             unlimited            unlimited            bytes\n" +
			"Max address space         unlimited            unlimited            bytes\n" +
			"Max locked memory         65536                65536                bytes\n",
	}
	for k, v := range more {
		files[k] = v
	}
	return files
}

func TestCheck(t *testing.T) {
	group := func(name, limit, used string) map[string]string {
		return map[string]string{"sys/fs/cgroup" + name + "/memory.max": limit, "sys/fs/cgroup" + name + "/memory.current": used}
	}
	limits := func(line string) map[string]string {
		return map[string]string{"proc/7/limits": line}
	}
	for _, c := range []struct {
		what  string
		files map[string]string
		locks bool
		take  Take
		want  string // in the error; "": there is room
	}{
		{"nothing limits", nil, false, Take{Charged: 1 << 20, Ours: 1 << 20, Mapped: 1 << 40, Private: 1 << 30, Locked: 1 << 40}, ""},
		{"half of the target's", group("/a/b", "1000", "0"), false, Take{Charged: 500}, ""},
		{"more than half", group("/a/b", "1000", "0"), false, Take{Charged: 501}, "501 bytes needed, and 1000 bytes of 1000 bytes are free (memory cgroup /sys/fs/cgroup/a/b, memory.max)"},
		{"ours is not theirs", group("/a/b", "1000", "0"), false, Take{Ours: 501}, ""},
		{"ours", group("/a/c", "1000", "0"), false, Take{Ours: 501}, "/sys/fs/cgroup/a/c, memory.max"},
		{"common to both", group("/a", "1000", "0"), false, Take{Charged: 300, Ours: 300}, "600 bytes needed"},
		{"the machine", nil, false, Take{Ours: 46 << 20}, "MemAvailable"},
		{"no overcommitting", map[string]string{"proc/sys/vm/overcommit_memory": "2\n"}, false, Take{Private: 51 << 10}, "CommitLimit"},
		{"overcommitting", map[string]string{"proc/sys/vm/overcommit_memory": "0\n"}, false, Take{Private: 51 << 10}, ""},
		{"address space", limits("Max address space         5220000            unlimited            bytes\n"), false, Take{Mapped: 60000}, "prlimit --pid 7 --as=unlimited"},
		{"data", limits("Max data size         816800            unlimited            bytes\n"), false, Take{Private: 60000}, "RLIMIT_DATA of process 7"},
		{"locked memory", nil, true, Take{Locked: 30000}, "RLIMIT_MEMLOCK"},
		{"locked memory, a privileged process", map[string]string{"proc/7/status": "VmLck: 8 kB\nCapEff:\t000001ffffffffff\n"}, true, Take{Locked: 30000}, ""},
		{"it locks nothing", nil, false, Take{Locked: 30000}, ""},
	} {
		ls, err := tree(t, machine(c.files)).Of(7, 8, c.locks)
		if err != nil {
			t.Fatal(err)
		}
		err = ls.Check(c.take)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestUnread(t *testing.T) {
	r := tree(t, machine(map[string]string{"sys/fs/cgroup/a/memory.max": "much\n"}))
	if _, err := r.Of(7, 8, false); !errors.Is(err, ErrUnread) {
		t.Errorf("a limit that is no number: %v", err)
	}
}
