package ring

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// DetectSource says which clock records should carry on this machine and, if it is not
// the CPU's counter, why: the counter must run at one rate, through all idle states, and
// the same on all CPUs. (A target may be forbidden to read it all the same,
// PR_SET_TSC; that is for the target's side to find out.)
func DetectSource() (s Source, why string) {
	if runtime.GOARCH != "amd64" {
		return SourceMonotonic, "no counter of " + runtime.GOARCH + " is supported yet"
	}
	const dir = "/sys/devices/system/clocksource/clocksource0/"
	current, available := readText(dir+"current_clocksource"), readText(dir+"available_clocksource")
	return judgeTSC(current, available, readText("/proc/cpuinfo"))
}

func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// judgeTSC decides from the kernel's clock source, those it would take, and cpuinfo. A
// kernel that runs on the counter itself has checked it; one that runs on a
// paravirtual clock has not, so there the CPU's flags are asked.
func judgeTSC(current, available, cpuinfo string) (s Source, why string) {
	if current == "tsc" {
		return SourceTSC, ""
	}
	if available != "" && !slices.Contains(strings.Fields(available), "tsc") {
		return SourceMonotonic, fmt.Sprintf("the kernel does not trust the CPU's counter (clock source %s, available: %s)", current, available)
	}
	flags := cpuFlags(cpuinfo)
	for _, f := range []string{"constant_tsc", "nonstop_tsc"} {
		if !slices.Contains(flags, f) {
			return SourceMonotonic, fmt.Sprintf("the CPU's counter is not invariant (clock source %q, no %s in /proc/cpuinfo)", current, f)
		}
	}
	return SourceTSC, ""
}

// cpuFlags returns the flags of the first CPU.
func cpuFlags(cpuinfo string) []string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			return strings.Fields(value)
		}
	}
	return nil
}
