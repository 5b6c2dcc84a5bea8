package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/workload"
	"kprobes.dev/kprobes/target/process"
)

// attachVerb is a hidden verb that attaches to a process as kprobe trace does, and tells what
// that took.
const attachVerb = "__attach"

// attached is what it answers.
type attached struct {
	NS     int64  `json:"ns"`
	PeakKB uint64 `json:"peak_kb"`
}

func newAttachTimer() *cobra.Command {
	return &cobra.Command{
		Use:    attachVerb + " PID FUNCTION",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[0])
			if err != nil {
				return usagef("pid %q: a number", args[0])
			}
			a, err := timeAttach(pid, args[1])
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(a)
		},
	}
}

// timeAttach arms one probe in a process and takes it out again.
func timeAttach(pid int, function string) (a attached, err error) {
	start := time.Now()
	s, err := attach(pid, process.TargetOptions{})
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, s.core.Close(nil)); s.proc.Close() }()
	d, err := event.Parse("p " + function + " $comm")
	if err != nil {
		return a, err
	}
	if _, err := s.core.Add([]*event.Def{d}, nil); err != nil {
		return a, err
	}
	a.NS = time.Since(start).Nanoseconds()
	a.PeakKB, err = peakKB()
	return a, err
}

// peakKB is the most memory that this process has had resident, in KiB.
func peakKB() (kb uint64, err error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(b, []byte("\nVmHWM:"))
	if _, err := fmt.Sscanf(string(rest), "%d kB", &kb); err != nil {
		return 0, fmt.Errorf("VmHWM of /proc/self/status: %w", err)
	}
	return kb, nil
}

// largeBytes is the size of the large program: more than 100 MB.
const largeBytes = 110 << 20

// attach measures how long a tracer takes to attach to a large program, and its memory.
func (b *bench) attach(dir string) error {
	fs := []figure{
		{What: "attached to a large program, one probe armed", Where: whereProcess, Unit: "ms", Bar: barAttach, AtMost: true},
		{What: "the tracer's memory for it", Where: whereProcess, Unit: "MB", Bar: barMemory, AtMost: true},
	}
	best, of, err := b.attachLarge(dir)
	if err != nil {
		return b.add(failed(fs, err)...)
	}
	fs[0].set(float64(best.NS) / 1e6)
	fs[1].set(float64(best.PeakKB) / 1024)
	fs[0].Of = of
	return b.add(fs...)
}

func (b *bench) attachLarge(dir string) (best attached, of string, err error) {
	rounds := fullArmings
	if b.quick {
		rounds = 1
	}
	path := filepath.Join(dir, "large")
	if err := workload.WriteLarge(path, largeBytes); err != nil {
		return best, "", err
	}
	st, err := os.Stat(path)
	if err != nil {
		return best, "", err
	}
	pid, stop, err := workload.StartLarge(path)
	if err != nil {
		return best, "", err
	}
	defer func() { err = errors.Join(err, stop()) }()
	exe, err := os.Executable()
	if err != nil {
		return best, "", err
	}
	for range rounds {
		out, err := exec.CommandContext(b.ctx, exe, attachVerb, strconv.Itoa(pid), workload.LargeSymbol).Output()
		if err != nil {
			return best, "", fmt.Errorf("attaching to a program of %d MB: %w", st.Size()>>20, childError(err))
		}
		var a attached
		if err := json.Unmarshal(out, &a); err != nil {
			return best, "", err
		}
		if best.NS == 0 || a.NS < best.NS {
			best.NS = a.NS
		}
		best.PeakKB = max(best.PeakKB, a.PeakKB)
	}
	return best, fmt.Sprintf("%d MB, 100,000 functions", st.Size()>>20), nil
}

// childError adds what a subprocess wrote to its stderr.
func childError(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}
