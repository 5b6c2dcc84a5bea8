//go:build linux

package kuprobe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// uprobePMU is where the kernel tells the number of the uprobe PMU (Linux 4.17).
const uprobePMU = "/sys/bus/event_source/devices/uprobe"

// Available says whether the kernel offers uprobes to perf_event_open, and why not.
func Available() error {
	_, err := pmuType()
	return err
}

func pmuType() (uint32, error) {
	text, err := os.ReadFile(uprobePMU + "/type")
	if err != nil {
		return 0, fmt.Errorf("uprobe PMU: %w (Linux 4.17 with CONFIG_UPROBE_EVENTS is needed)", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	return uint32(n), err
}

// Open places a probe through the uprobe PMU. It counts and takes no arguments.
func (pl Place) Open() (*Probe, error) {
	kind, err := pmuType()
	if err != nil {
		return nil, err
	}
	path, err := unix.BytePtrFromString(pl.Path)
	if err != nil {
		return nil, fmt.Errorf("uprobe: %w", err)
	}
	// Ext1 is config1, a pointer to the path; Ext2 is config2, the offset (perf_uprobe,
	// Documentation of perf_event_open(2)). Bit 0 of config is "retprobe".
	attr := unix.PerfEventAttr{Type: kind, Ext1: uint64(uintptr(unsafe.Pointer(path))), Ext2: pl.Offset}
	if pl.Return {
		attr.Config = 1
	}
	p := &Probe{}
	err = p.count(&attr)
	runtime.KeepAlive(path)
	if err != nil {
		return nil, fmt.Errorf("uprobe on %s:%#x: %w", pl.Path, pl.Offset, err)
	}
	return p, nil
}

// counter is a perf event that counts on one CPU, for every process.
type counter struct{ fd int }

// count opens the event on each CPU that is online.
func (p *Probe) count(attr *unix.PerfEventAttr) error {
	attr.Size = uint32(unsafe.Sizeof(*attr))
	cpus, err := online()
	if err != nil {
		return err
	}
	for _, cpu := range cpus {
		fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			for _, c := range p.counters {
				_ = c.close()
			}
			p.counters = nil
			return fmt.Errorf("perf_event_open on CPU %d: %w", cpu, err)
		}
		p.counters = append(p.counters, &counter{fd})
	}
	return nil
}

func (c *counter) read() (uint64, error) {
	var buf [8]byte
	if n, err := unix.Read(c.fd, buf[:]); err != nil || n != len(buf) {
		return 0, fmt.Errorf("perf event: read %d bytes: %w", n, err)
	}
	return binary.NativeEndian.Uint64(buf[:]), nil
}

func (c *counter) close() error { return unix.Close(c.fd) }

// online lists the CPUs that are online.
func online() ([]int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	var cpus []int
	for part := range bytes.SplitSeq(bytes.TrimSpace(text), []byte(",")) {
		first, last, isRange := strings.Cut(string(part), "-")
		if !isRange {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("CPUs online %q: %w", text, err)
		}
		b, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("CPUs online %q: %w", text, err)
		}
		for cpu := a; cpu <= b; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}
