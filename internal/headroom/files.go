package headroom

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const cgroupName = "memory cgroup "

// hierarchy is a tree of cgroups that limit memory, as it is mounted.
type hierarchy struct {
	point string // where
	root  string // the cgroup that the mount shows as its root
	v2    bool
}

// cgroups finds the limits of the cgroups that a process is in, and of those above them, by
// name. Those above what is mounted here, or above the cgroup namespace, are not seen.
func (r Root) cgroups(pid int) (map[string]Limit, error) {
	ls := map[string]Limit{}
	groups := r.text("proc/%d/cgroup", pid)
	for _, h := range hierarchies(r.text("proc/self/mountinfo")) {
		group, ok := groupIn(groups, h.v2)
		if !ok {
			continue
		}
		for _, rel := range upwards(h.root, group) {
			dir := path.Join(h.point, rel)
			found, err := r.limitsIn(dir, h.v2)
			if err != nil {
				return nil, err
			}
			for _, l := range found {
				ls[l.Name] = l
			}
		}
	}
	return ls, nil
}

// hierarchies finds the mounts of cgroups with limits of memory in the text of proc(5) mountinfo:
//
//	36 35 0:26 ROOT POINT OPTIONS [TAG…] - TYPE SOURCE SUPEROPTIONS
func hierarchies(mountinfo string) []hierarchy {
	var hs []hierarchy
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, t := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(t) < 3 {
			continue
		}
		switch {
		case t[0] == "cgroup2":
			hs = append(hs, hierarchy{unescape(f[4]), unescape(f[3]), true})
		case t[0] == "cgroup" && slices.Contains(strings.Split(t[2], ","), "memory"):
			hs = append(hs, hierarchy{unescape(f[4]), unescape(f[3]), false})
		}
	}
	return hs
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	for i := 0; i+4 <= len(s); i++ {
		if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); s[i] == '\\' && err == nil {
			s = s[:i] + string(rune(n)) + s[i+4:]
		}
	}
	return s
}

// groupIn finds the cgroup in the text of proc(5) cgroup: "0::/path", "4:memory:/path".
func groupIn(groups string, v2 bool) (string, bool) {
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if v2 && f[0] == "0" && f[1] == "" || !v2 && slices.Contains(strings.Split(f[1], ","), "memory") {
			return f[2], true
		}
	}
	return "", false
}

// upwards gives a cgroup and those above it, down from the mount's root, as paths below its
// point. One that is not below the root (of another namespace) is known by the root alone.
func upwards(root, group string) []string {
	rel := "/"
	if g := path.Clean(group); root == "/" && !strings.HasPrefix(g, "/..") {
		rel = g
	} else if below, ok := strings.CutPrefix(g, root+"/"); ok {
		rel = "/" + below
	}
	ups := []string{rel}
	for rel != "/" {
		rel = path.Dir(rel)
		ups = append(ups, rel)
	}
	return ups
}

// files are the names of a cgroup's limit, of what is used, and of the line of memory.stat that
// tells which part of that is page cache that is reclaimed first.
type files struct{ limit, used, cache string }

var filesV1 = []files{
	{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
	{"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_inactive_file"},
}

// Beyond memory.high a process is slowed down until it all but stands.
var filesV2 = []files{
	{"memory.max", "memory.current", "inactive_file"},
	{"memory.high", "memory.current", "inactive_file"},
}

func (r Root) limitsIn(dir string, v2 bool) (ls []Limit, err error) {
	names := filesV1
	if v2 {
		names = filesV2
	}
	stat := r.text("%s/memory.stat", dir)
	for _, f := range names {
		limit, err := r.number(dir, f.limit)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		used, err := r.number(dir, f.used)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		cache, _ := field(stat, f.cache)
		ls = append(ls, Limit{
			Name: fmt.Sprintf("%s%s, %s", cgroupName, dir, f.limit), Max: limit, Used: used - min(cache, used),
			Advice: fmt.Sprintf("raise %s/%s, or probe less", dir, f.limit),
		})
	}
	return ls, nil
}

// errNone: the cgroup has no such limit.
var errNone = errors.New("no limit")

// number reads a file of a cgroup that holds one number.
func (r Root) number(dir, name string) (uint64, error) {
	p := filepath.Join(string(r), dir, name)
	b, err := os.ReadFile(p)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errors.Join(errNone, err)
	}
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return 0, errNone
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, unread(p, text)
	}
	if n >= noLimit {
		return 0, errNone
	}
	return n, nil
}

// text reads a file whole; "" if it is not there.
func (r Root) text(format string, args ...any) string {
	b, err := os.ReadFile(filepath.Join(string(r), fmt.Sprintf(format, args...)))
	if err != nil {
		return ""
	}
	return string(b)
}

// field finds the number behind a word that begins a line.
func field(text, word string) (uint64, bool) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == word {
			n, err := strconv.ParseUint(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// softLimit finds a line of proc(5) limits, in bytes; false: it is not limited.
func softLimit(limits, name string) (uint64, bool) {
	for line := range strings.Lines(limits) {
		rest, ok := strings.CutPrefix(line, name+" ")
		if f := strings.Fields(rest); ok && len(f) > 0 {
			n, err := strconv.ParseUint(f[0], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
