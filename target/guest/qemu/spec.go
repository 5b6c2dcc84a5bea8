package qemu

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Spec says where a machine is to be found. All are paths.
type Spec struct {
	QMP    string // unix socket of a monitor that nobody else uses
	GDB    string // unix socket of the gdb stub
	Memory string // the file that backs the RAM, shared
	Ring   string // the file that backs an ivshmem-plain device; "" is none
	Dir    string // the directory that Start has made; "" for a QEMU started otherwise
}

// String is the text that ParseSpec takes.
func (s Spec) String() string {
	if s.Dir != "" {
		return s.Dir
	}
	t := "qmp=" + s.QMP + ",gdb=" + s.GDB + ",mem=" + s.Memory
	if s.Ring != "" {
		t += ",ring=" + s.Ring
	}
	return t
}

// ParseSpec reads a directory made by Start, or qmp=PATH,gdb=PATH,mem=PATH[,ring=PATH]. A
// path in a list holds no comma. Errors are EINVAL, or those of the directory.
func ParseSpec(s string) (Spec, error) { return ParseSpecAt("", s) }

// ParseSpecAt is ParseSpec for paths that begin at a directory, unless they are absolute.
func ParseSpecAt(dir, s string) (Spec, error) {
	if key, _, ok := strings.Cut(s, "="); ok && isKey(key) {
		sp, err := parseList(s)
		if err != nil {
			return Spec{}, err
		}
		for _, path := range []*string{&sp.QMP, &sp.GDB, &sp.Memory, &sp.Ring} {
			if *path != "" {
				*path = beginAt(dir, *path)
			}
		}
		return sp, nil
	}
	if s == "" {
		return Spec{}, errno.Errorf(unix.EINVAL, "guest: neither a directory of kprobe guest start nor qmp=PATH,gdb=PATH,mem=PATH[,ring=PATH]")
	}
	s = beginAt(dir, s)
	r, err := readRecord(s)
	if err != nil {
		return Spec{}, err
	}
	return r.spec(s)
}

func beginAt(dir, path string) string {
	if dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func isKey(s string) bool { return s == "qmp" || s == "gdb" || s == "mem" || s == "ring" }

func parseList(s string) (Spec, error) {
	var sp Spec
	at := map[string]*string{"qmp": &sp.QMP, "gdb": &sp.GDB, "mem": &sp.Memory, "ring": &sp.Ring}
	for item := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(item, "=")
		switch {
		case !ok || !isKey(key):
			return Spec{}, errno.Errorf(unix.EINVAL, "guest %q: %q is not one of qmp=PATH, gdb=PATH, mem=PATH, ring=PATH", s, item)
		case value == "":
			return Spec{}, errno.Errorf(unix.EINVAL, "guest %q: %s= has no path", s, key)
		case *at[key] != "":
			return Spec{}, errno.Errorf(unix.EINVAL, "guest %q: %s= stands there twice", s, key)
		}
		*at[key] = value
	}
	for _, key := range []string{"qmp", "gdb", "mem"} {
		if *at[key] == "" {
			return Spec{}, errno.Errorf(unix.EINVAL, "guest %q: %s=PATH is missing; QEMU must have been started with\n%s", s, key, Flags())
		}
	}
	return sp, nil
}

// recordName is the file in which Start keeps what it has started.
const recordName = "guest.json"

// maxRecord bounds that file.
const maxRecord = 64 << 10

// record is the content of guest.json.
type record struct {
	PID     int      `json:"pid"`
	Started uint64   `json:"started"` // field 22 of /proc/PID/stat, clock ticks since boot
	QMP     string   `json:"qmp"`
	GDB     string   `json:"gdb"`
	Memory  string   `json:"memory"`
	Ring    string   `json:"ring,omitempty"`
	Files   []string `json:"files"`             // made by Start, to be removed by End
	MadeDir bool     `json:"madeDir,omitempty"` // the directory too
}

func readRecord(dir string) (*record, error) {
	name := filepath.Join(dir, recordName)
	f, err := os.Open(name)
	if err != nil {
		if _, derr := os.Stat(dir); derr == nil {
			return nil, fmt.Errorf("guest %s: no guest of kprobe guest start lives there: %w", dir, err)
		}
		return nil, fmt.Errorf("guest: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() && sys.Uid != 0 {
		return nil, errno.Errorf(unix.EPERM, "guest: %s belongs to user %d: files that it names would be opened and removed as user %d", name, sys.Uid, os.Geteuid())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	r := new(record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, errno.Errorf(unix.EINVAL, "guest: %s is not what kprobe guest start writes: %w", name, err)
	}
	return r, nil
}

func (r *record) spec(dir string) (Spec, error) {
	if r.QMP == "" || r.GDB == "" || r.Memory == "" || r.PID <= 0 {
		return Spec{}, errno.Errorf(unix.EINVAL, "guest: %s is not what kprobe guest start writes: pid, qmp, gdb and memory are not all there",
			filepath.Join(dir, recordName))
	}
	return Spec{QMP: r.QMP, GDB: r.GDB, Memory: r.Memory, Ring: r.Ring, Dir: dir}, nil
}

// write puts the record into its directory, whole or not at all.
func (r *record) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, recordName+".new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, recordName))
}
