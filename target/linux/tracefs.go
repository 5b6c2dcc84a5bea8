package linux

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
)

// ErrNoTracefs means that tracefs is mounted nowhere.
var ErrNoTracefs = errors.New("tracefs is not mounted: mount -t tracefs nodev /sys/kernel/tracing")

// ErrNoKprobes means that the kernel has tracefs but takes no probes.
var ErrNoKprobes = errors.New("this kernel has no kprobes")

// Dir finds tracefs of a kernel that has kprobes. Its errors wrap ErrNoTracefs,
// ErrNoKprobes or fs.ErrPermission, say what to do, and answer ENODEV but for the last.
func Dir() (string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", errno.Errorf(syscall.ENODEV, "mounts: %w", err)
	}
	defer mounts.Close()
	tracefs, _ := mountpoints(bufio.NewScanner(mounts))
	// A tracefs below debugfs is mounted when somebody looks.
	tracefs = append(tracefs, "/sys/kernel/tracing", "/sys/kernel/debug/tracing")
	found := ""
	for _, dir := range tracefs {
		switch _, err := os.Stat(filepath.Join(dir, "kprobe_events")); {
		case err == nil:
			return dir, nil
		case errors.Is(err, fs.ErrPermission):
			return "", fmt.Errorf("tracefs in %s: %w: run as root", dir, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "trace")); err == nil && found == "" {
			found = dir
		}
	}
	if found == "" {
		return "", errno.Errorf(syscall.ENODEV, "%w", ErrNoTracefs)
	}
	return "", errno.Errorf(syscall.ENODEV, "%w: there is no kprobe_events in %s; %s", ErrNoKprobes, found, missing())
}

// mountpoints lists where tracefs and debugfs are mounted (proc(5), /proc/PID/mounts).
func mountpoints(sc *bufio.Scanner) (tracefs, debugfs []string) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 3 {
			continue
		}
		switch dir := unescape.Replace(f[1]); f[2] {
		case "tracefs":
			tracefs = append(tracefs, dir)
		case "debugfs":
			debugfs = append(debugfs, dir)
		}
	}
	return tracefs, debugfs
}

// missing says what a kernel without kprobe_events was built without.
func missing() string {
	f, err := os.Open("/proc/kallsyms")
	if err == nil {
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if strings.HasSuffix(sc.Text(), " register_kprobe") {
				return "it is built with CONFIG_KPROBES but without CONFIG_KPROBE_EVENTS"
			}
		}
	}
	return "it needs CONFIG_KPROBES and CONFIG_KPROBE_EVENTS"
}

// debugfs finds a file of debugfs's folder kprobes. It is told if debugfs is not
// mounted.
func debugfs(name string) (string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("mounts: %w", err)
	}
	defer mounts.Close()
	_, dirs := mountpoints(bufio.NewScanner(mounts))
	for _, dir := range dirs {
		path := filepath.Join(dir, "kprobes", name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errno.Errorf(syscall.ENODEV, "debugfs is not mounted: mount -t debugfs nodev /sys/kernel/debug")
}

// write writes to a file of tracefs in one call, as its files want it, and never
// truncates: for kprobe_events that would delete everybody's probes.
func write(text string, path ...string) error {
	f, err := os.OpenFile(filepath.Join(path...), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// read reads a file of tracefs.
func read(path ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(path...))
	return string(b), err
}

// SwitchedOff says whether the kernel's probes are all disarmed.
func SwitchedOff() bool {
	file, err := debugfs("enabled")
	if err != nil {
		return false
	}
	text, err := read(file)
	return err == nil && strings.TrimSpace(text) == "0"
}
