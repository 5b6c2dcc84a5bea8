//go:build linux

package kuprobe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrNoTracefs says that tracefs is mounted nowhere.
var ErrNoTracefs = errors.New("tracefs not mounted: mount -t tracefs nodev /sys/kernel/tracing, as root")

// Mountpoint is where tracefs belongs.
const Mountpoint = "/sys/kernel/tracing"

// Dir returns the directory where tracefs is mounted, or ErrNoTracefs.
func Dir() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(mounts) {
		f := bytes.Fields(line)
		if len(f) > 2 && string(f[2]) == "tracefs" {
			return string(f[1]), nil
		}
	}
	return "", ErrNoTracefs
}

// Mount mounts tracefs at its place unless it is mounted already, and returns where. It
// needs CAP_SYS_ADMIN, and nothing undoes it.
func Mount() (string, error) {
	if dir, err := Dir(); err == nil {
		return dir, nil
	}
	if err := unix.Mount("nodev", Mountpoint, "tracefs", 0, ""); err != nil {
		return "", fmt.Errorf("mount of tracefs at %s: %w", Mountpoint, err)
	}
	return Mountpoint, nil
}

// Place is an instruction of a program.
type Place struct {
	Path   string // the program's file: a copy of its own (see the package's text)
	Offset uint64 // of the instruction in the file, in bytes
	Return bool   // the function that starts there, when it returns
}

// Tracefs describes a probe made by tracefs.
type Tracefs struct {
	Place
	Args   string // fetch arguments, as in "a=%di b=%si:u32"
	Record bool   // record in the ring of a trace instance of our own, not only count
}

// Probe is a kernel uprobe that is placed and counts.
type Probe struct {
	counters []*counter // of perf events
	group    string     // tracefs: group/event
	event    string
	dir      string // tracefs: mount point
	instance string // tracefs: directory of our trace instance
}

// group is the group of all our events.
const group = "kprobes_rival"

// serial makes the names of this process's events different.
var serial atomic.Uint64

// Open places the probe.
func (tr Tracefs) Open() (*Probe, error) {
	dir, err := Dir()
	if err != nil {
		return nil, fmt.Errorf("uprobe: %w", err)
	}
	path, err := filepath.Abs(tr.Path)
	if err != nil {
		return nil, fmt.Errorf("uprobe: %w", err)
	}
	if strings.ContainsAny(path, " \t\n:") {
		return nil, fmt.Errorf("uprobe on %q: uprobe_events takes no path with blanks or colons: copy the program elsewhere", path)
	}
	p := &Probe{group: group, event: fmt.Sprintf("e%d_%d", os.Getpid(), serial.Add(1)), dir: dir}
	kind := "p"
	if tr.Return {
		kind = "r"
	}
	def := fmt.Sprintf("%s:%s/%s %s:%#x %s", kind, p.group, p.event, path, tr.Offset, tr.Args)
	if err := p.define(def); err != nil {
		return nil, fmt.Errorf("uprobe %q: %w", def, err)
	}
	if err := p.arm(tr.Record); err != nil {
		return nil, errors.Join(fmt.Errorf("uprobe %q: %w", def, err), p.Close())
	}
	return p, nil
}

// define adds one line to uprobe_events. The file must be opened for appending: opened
// otherwise it first removes every event of everybody.
func (p *Probe) define(line string) error {
	f, err := os.OpenFile(filepath.Join(p.dir, "uprobe_events"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		f.Close()
		return fmt.Errorf("%w%s", err, p.reason())
	}
	return f.Close()
}

// reason is the kernel's last word in its error log.
func (p *Probe) reason() string {
	log, err := os.ReadFile(filepath.Join(p.dir, "error_log"))
	if err != nil {
		return ""
	}
	if i := bytes.LastIndex(log, []byte("error:")); i >= 0 {
		line, _, _ := bytes.Cut(log[i:], []byte("\n"))
		return " (" + strings.TrimSpace(string(line)) + ")"
	}
	return ""
}

// arm enables the event, in an instance of its own or as a perf event of every CPU.
func (p *Probe) arm(record bool) error {
	if record {
		p.instance = filepath.Join(p.dir, "instances", p.event)
		if err := os.Mkdir(p.instance, 0o700); err != nil {
			p.instance = ""
			return err
		}
		return p.enable("1")
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "events", p.group, p.event, "id"))
	if err != nil {
		return err
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return err
	}
	return p.count(&unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Config: id})
}

func (p *Probe) enable(v string) error {
	return os.WriteFile(filepath.Join(p.instance, "events", p.group, p.event, "enable"), []byte(v), 0)
}

// Count returns how often the probe was hit since Open. For a recording probe it is the
// kernel's own count in uprobe_profile, which records that the ring lost are part of.
func (p *Probe) Count() (uint64, error) {
	if p.instance != "" {
		return p.profile()
	}
	var sum uint64
	for _, c := range p.counters {
		n, err := c.read()
		if err != nil {
			return 0, fmt.Errorf("count of uprobe: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// profile finds our line in uprobe_profile: path, event, hits.
func (p *Probe) profile() (uint64, error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "uprobe_profile"))
	if err != nil {
		return 0, fmt.Errorf("count of uprobe: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == p.event {
			return strconv.ParseUint(f[2], 10, 64)
		}
	}
	return 0, fmt.Errorf("count of uprobe: no %s in uprobe_profile", p.event)
}

// Records returns the text of what a recording probe's ring still holds.
func (p *Probe) Records() (string, error) {
	if p.instance == "" {
		return "", errors.New("records of uprobe: it only counts")
	}
	text, err := os.ReadFile(filepath.Join(p.instance, "trace"))
	return string(text), err
}

// Close takes the probe out and removes all that Open made. Threads that are inside a
// return-probed function return as usual.
func (p *Probe) Close() error {
	var errs []error
	for _, c := range p.counters {
		errs = append(errs, c.close())
	}
	p.counters = nil
	if p.instance != "" {
		errs = append(errs, p.enable("0"), unix.Rmdir(p.instance))
		p.instance = ""
	}
	if p.event != "" {
		errs = append(errs, p.define("-:"+p.group+"/"+p.event))
		p.event = ""
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removal of uprobe: %w", err)
	}
	return nil
}
