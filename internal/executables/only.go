package executables

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Only says which processes of an executable count: those of a control group and the groups below it, those of a container. The zero value takes all.
type Only struct {
	// Group is the path of a control group, from the root of their file system on.
	Group string
	// Container is the id of a container, or how that begins.
	Container string
}

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// Hexadecimal digits of a container's id, in full and at least.
const (
	containerDigits    = 64
	minContainerDigits = 12
)

// NewOnly checks what was given. A group may be named with the directory that control groups are mounted at.
func NewOnly(group, container string) (Only, error) {
	if group != "" {
		rest, in := strings.CutPrefix(path.Clean(group), cgroupRoot)
		if !strings.HasPrefix(rest, "/") && !(in && rest == "") {
			return Only{}, errno.Errorf(unix.EINVAL, "control group %q: give its whole path, such as /system.slice/cron.service, or that of its directory in %s", group, cgroupRoot)
		}
		group = path.Clean("/" + rest)
	}
	if container != "" && (len(container) < minContainerDigits || len(container) > containerDigits || !isHex(container)) {
		return Only{}, errno.Errorf(unix.EINVAL, "container %q: give its id, or at least the first %d hexadecimal digits of that", container, minContainerDigits)
	}
	return Only{group, container}, nil
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// All says that every process counts.
func (o Only) All() bool { return o == Only{} }

// Takes says whether a process counts, by the text of its file /proc/PID/cgroup: in one of the hierarchies that it lists. Where there are older ones beside the
// unified one, each engine and unit uses those that it was made for.
func (o Only) Takes(text string) bool {
	if o.All() {
		return true
	}
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if _, at, ok := strings.Cut(rest, ":"); ok && o.takesPath(at) {
			return true
		}
	}
	return false
}

func (o Only) takesPath(at string) bool {
	if o.Group != "" && o.Group != "/" && at != o.Group && !strings.HasPrefix(at, o.Group+"/") {
		return false
	}
	return o.Container == "" || o.inContainer(at)
}

// inContainer says whether a part of the path is the container's: its id alone, or as systemd's unit of the engine that runs it
// (docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope).
func (o Only) inContainer(at string) bool {
	for part := range strings.SplitSeq(at, "/") {
		id := strings.TrimSuffix(part, ".scope")
		id = id[strings.LastIndex(id, "-")+1:]
		if len(id) == containerDigits && isHex(id) && strings.HasPrefix(id, o.Container) {
			return true
		}
	}
	return false
}
