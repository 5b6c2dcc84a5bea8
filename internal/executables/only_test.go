package executables

import (
	"strings"
	"testing"
)

func TestOnly(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, c := range []struct {
		group, container, text string
		takes                  bool
	}{
		{"", "", "", true},
		{"/system.slice", "", "0::/system.slice\n", true},
		{"/system.slice/", "", "0::/system.slice/cron.service\n", true},
		{"/sys/fs/cgroup/system.slice", "", "0::/system.slice/cron.service\n", true},
		{"/sys/fs/cgroup", "", "0::/system.slice/cron.service\n", true},
		{"/system.slice", "", "0::/system.slices\n", false},
		{"/system.slice", "", "0::/\n", false},
		{"/system.slice", "", "", false},
		{"/a", "", "4:memory:/b\n3:cpu,cpuacct:/a/c\n", true},
		{"/a", "", "4:memory:/a\n0::/\n", true},
		{"/a", id, "4:memory:/a\n0::/docker/" + id + "\n", false}, // not in one
		{"", id, "0::/system.slice/docker-" + id + ".scope\n", true},
		{"", id[:12], "0::/docker/" + id + "\n", true},
		{"", id[:12], "0::/kubepods.slice/pod7.slice/cri-containerd-" + id + ".scope/init\n", true},
		{"", id[:12], "0::/machine.slice/libpod-" + id + ".scope/container\n", true},
		{"", id[1:14], "0::/docker/" + id + "\n", false},
		{"", id[:12], "0::/docker/" + id[:12] + "\n", false}, // a directory of another kind
		{"/docker", id[:12], "0::/docker/" + id + "\n", true},
		{"/podman", id[:12], "0::/docker/" + id + "\n", false},
	} {
		o, err := NewOnly(c.group, c.container)
		if err != nil || o.Takes(c.text) != c.takes {
			t.Errorf("%q, %q of %q: %v, %v; want %v", c.group, c.container, c.text, o.Takes(c.text), err, c.takes)
		}
	}
	for _, bad := range [][2]string{{"system.slice", ""}, {"", "0123"}, {"", id + "0"}, {"", "web-frontend-1"}} {
		if o, err := NewOnly(bad[0], bad[1]); err == nil {
			t.Errorf("%q is taken for %+v", bad, o)
		}
	}
}
