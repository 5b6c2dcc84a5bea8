package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// uprobeLists are where the kernel lists the uprobes that tracefs knows, wherever it may
// be mounted.
var uprobeLists = []string{
	"/sys/kernel/tracing/uprobe_events", "/sys/kernel/tracing/dynamic_events",
	"/sys/kernel/debug/tracing/uprobe_events", "/sys/kernel/debug/tracing/dynamic_events",
}

// uprobePlace is a place that a uprobe is defined for.
type uprobePlace struct {
	file procfs.FileID
	off  uint64
	text string
}

// refuseUprobes refuses sites where a kernel uprobe is defined: when it is enabled the
// kernel would write its breakpoint into our jump, and a hit kills the program. Active
// ones, and those that come after the look at the lists, are seen by their breakpoint. The
// lists are not for a stopped world: the kernel may be long in giving them while somebody
// registers uprobes.
func (t *Target) refuseUprobes(add []*target.Site) error {
	if len(add) == 0 {
		return nil
	}
	places := uprobes()
	if len(places) == 0 {
		return nil
	}
	maps, err := t.p.Maps()
	if err != nil {
		return err
	}
	maps = fileMaps(maps)
	for _, a := range add {
		m, ok := procfs.FindMap(maps, a.Addr)
		if !ok {
			continue
		}
		lo := a.Addr - m.Start + m.Offset
		for _, u := range places {
			if u.file == m.FileID && u.off >= lo && u.off < lo+uint64(len(a.Patch)) {
				return errno.Errorf(unix.EBUSY, "0x%x: a kernel uprobe is defined there (%s): remove it first", a.Addr, u.text)
			}
		}
	}
	return nil
}

// uprobes reads the lists that can be read.
func uprobes() []uprobePlace {
	var out []uprobePlace
	seen := map[string]bool{}
	for _, list := range uprobeLists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(b), "\n") {
			if u, ok := parseUprobe(line); ok && !seen[line] {
				seen[line] = true
				out = append(out, u)
			}
		}
	}
	return out
}

// parseUprobe reads "p:GRP/EVENT PATH:0xOFFSET[(REF)] [ARGS]".
func parseUprobe(line string) (u uprobePlace, ok bool) {
	words := strings.Fields(line)
	if len(words) < 2 || words[0][0] != 'p' && words[0][0] != 'r' {
		return u, false
	}
	i := strings.LastIndex(words[1], ":0x")
	if i < 0 || !filepath.IsAbs(words[1]) {
		return u, false
	}
	num, _, _ := strings.Cut(words[1][i+1:], "(")
	num = strings.TrimSuffix(num, "%return")
	off, err := strconv.ParseUint(num, 0, 64)
	var st unix.Stat_t
	if err != nil || unix.Stat(words[1][:i], &st) != nil {
		return u, false
	}
	return uprobePlace{file: ptrace.FileID(&st), off: off, text: words[1]}, true
}
