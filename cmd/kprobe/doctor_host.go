package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/target/guest/qemu"
	"kprobes.dev/kprobes/target/linux"
)

// examineHost looks at the machine and at the caller's own rights.
func examineHost() []finding {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return []finding{fine("system", "%s on %s", runtime.GOOS, runtime.GOARCH).fail("processes are probed on Linux on x86-64 only")}
	}
	caps := ownCapabilities()
	fs := []finding{
		checkKernel(kernelRelease()),
		checkPtrace(caps),
		checkYama(sysctl("kernel/yama/ptrace_scope"), caps.has(unix.CAP_SYS_PTRACE)),
		checkSELinux(readText("/sys/fs/selinux/booleans/deny_ptrace")),
		checkOwnSeccomp(readText("/proc/self/status")),
		checkMemForce(forceWrite()),
		checkMemfd(sysctl("vm/memfd_noexec"), execMemfd()),
		checkRseq(rseqSupport()),
	}
	fs = append(fs, checkCPU(readText("/proc/cpuinfo"))...)
	fs = append(fs, checkClock())
	dir, err := linux.Dir()
	fs = append(fs, checkKprobes(dir, err, linux.SwitchedOff()))
	fs = append(fs, checkQEMU(exec.LookPath("qemu-system-x86_64")))
	fs = append(fs, checkTracefs(uprobeEvents()), checkPerf(kuprobe.Available(), sysctl("kernel/perf_event_paranoid"), caps))
	fs = append(fs, examineLimits(os.Getpid(), "own ")...)
	return append(fs, checkTrial(trial()))
}

// checkQEMU judges whether guests can be had (--guest), and tells what a QEMU needs that
// kprobe guest start has not started.
func checkQEMU(path string, err error) finding {
	const check, others = "guests", "a QEMU that is started otherwise must be given\n"
	if err != nil {
		return fine(check, "qemu-system-x86_64 is not in PATH").
			warn("guest start and demo --guest need it (Debian: apt-get install qemu-system-x86); " + others + qemu.Flags())
	}
	f := fine(check, "%s (guest start, demo --guest)", path)
	f.Do = others + qemu.Flags()
	return f
}

// Oldest kernels: the engine needs MAP_FIXED_NOREPLACE and PTRACE_SEIZE; it asks for
// threads' restartable sequences by PTRACE_GET_RSEQ_CONFIGURATION.
var (
	kernelNeeded = [2]int{4, 17}
	kernelRseq   = [2]int{5, 13}
)

func checkKernel(release string) finding {
	f := fine("kernel", "Linux %s", release)
	var v [2]int
	if n, _ := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); n != 2 {
		return f.warn("its version is not understood")
	}
	switch {
	case older(v, kernelNeeded):
		return f.fail("Linux 4.17 or later is needed")
	case older(v, kernelRseq):
		return f.warn("restartable sequences can not be asked for: hits are counted with locked instructions; Linux 5.13 or later can")
	}
	return f
}

func older(a, b [2]int) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

// capabilities is the caller's effective set (capabilities(7)).
type capabilities uint64

func (c capabilities) has(n int) bool { return c>>n&1 != 0 }

func ownCapabilities() capabilities {
	v, _ := strconv.ParseUint(statusField(readText("/proc/self/status"), "CapEff"), 16, 64)
	return capabilities(v)
}

func checkPtrace(c capabilities) finding {
	if c.has(unix.CAP_SYS_PTRACE) {
		return fine("rights", "user %d with CAP_SYS_PTRACE: every process that is seen from here may be probed", os.Geteuid())
	}
	return fine("rights", "user %d without CAP_SYS_PTRACE", os.Geteuid()).
		warn("only processes of this user may be probed: run as root, or setcap cap_sys_ptrace+ep on kprobe")
}

// checkYama judges kernel.yama.ptrace_scope (Documentation/admin-guide/LSM/Yama.rst).
func checkYama(scope string, ptraceCap bool) finding {
	const check, lower = "yama", "sysctl -w kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE"
	f := fine(check, "kernel.yama.ptrace_scope is %s", scope)
	switch {
	case scope == "":
		return fine(check, "not in this kernel")
	case scope == "3":
		return f.fail("nobody may trace, until the next boot; boot without it")
	case scope == "0" || ptraceCap:
		return f
	case scope == "1":
		return f.warn("only programs that kprobe starts itself (-- CMD) may be probed: " + lower)
	}
	return f.fail("this user may trace nothing: " + lower)
}

// checkSELinux judges the text of a boolean: its value now and the one that is pending.
func checkSELinux(denyPtrace string) finding {
	if strings.HasPrefix(denyPtrace, "1") {
		return fine("selinux", "deny_ptrace is on").fail("nobody may trace: setsebool deny_ptrace 0")
	}
	return fine("selinux", "it does not forbid tracing")
}

func checkOwnSeccomp(status string) finding {
	if statusField(status, "Seccomp") == "0" {
		return fine("own seccomp", "kprobe runs under no filter")
	}
	return fine("own seccomp", "kprobe runs under a filter (mode %s)", statusField(status, "Seccomp")).
		warn("ptrace, perf_event_open and the like may be forbidden: start the container with --security-opt seccomp=unconfined, or a profile that allows them")
}

// forceWrite tries what a probe does to code: a write to a read-only page through
// /proc/PID/mem.
func forceWrite() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(page) }()
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = mem.WriteAt([]byte{1}, addressOf(page))
	return err
}

func checkMemForce(err error) finding {
	const check = "memory writes"
	if err == nil {
		return fine(check, "/proc/PID/mem writes to read-only pages")
	}
	return fine(check, "/proc/PID/mem does not write to read-only pages: %v", err).
		warn("code is written word by word with PTRACE_POKETEXT, so that stops last longer: boot with proc_mem.force_override=ptrace")
}

// execMemfd tries what a target is made to do: run code in a memory file.
func execMemfd() error {
	fd, err := unix.MemfdCreate("kprobe-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(os.Getpagesize())); err != nil {
		return fmt.Errorf("size of a memory file: %w", err)
	}
	code, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("executable mapping of a memory file: %w", err)
	}
	return unix.Munmap(code)
}

func checkMemfd(noexec string, err error) finding {
	setting := "not in this kernel"
	if noexec != "" {
		setting = noexec
	}
	if err != nil {
		return fine("memory files", "%v (vm.memfd_noexec: %s)", err, setting).
			fail("code can not be put into a target of this pid namespace: sysctl -w vm.memfd_noexec=0")
	}
	return fine("memory files", "executable mappings work (vm.memfd_noexec: %s)", setting)
}

// rseqSupport asks with an impossible area: a kernel that knows the call says EINVAL.
func rseqSupport() error {
	_, _, e := unix.Syscall6(unix.SYS_RSEQ, 1, 0, 0, 0, 0, 0)
	if e == unix.ENOSYS || e == unix.EPERM {
		return e
	}
	return nil
}

func checkRseq(err error) finding {
	if err == nil {
		return fine("rseq", "the kernel has restartable sequences")
	}
	return fine("rseq", "no restartable sequences: %v", err).
		warn("hits are counted and recorded with locked instructions, some ns more; Linux 4.18 with CONFIG_RSEQ has them")
}

func checkClock() finding {
	s, why := ring.DetectSource()
	if s == ring.SourceTSC {
		return fine("time stamps", "the CPU's counter runs at one rate on all CPUs")
	}
	return fine("time stamps", "the CPU's counter does not serve: %s", why).
		warn("times of records on different CPUs may be out of order")
}

// uprobeEvents finds the file by which kernel uprobes are made, and says why it can not be
// written.
func uprobeEvents() error {
	dir, err := kuprobe.Dir()
	if err != nil {
		return err
	}
	return unix.Access(dir+"/uprobe_events", unix.W_OK)
}

func checkTracefs(err error) finding {
	f := fine("tracefs", "uprobe_events may be written")
	switch {
	case err == nil:
		return f
	case errors.Is(err, kuprobe.ErrNoTracefs):
		f.Found = "not mounted"
		return f.warn("places of other processes' kernel uprobes are not seen, and bench compares no records: mount -t tracefs nodev " + kuprobe.Mountpoint)
	}
	f.Found = fmt.Sprintf("uprobe_events can not be written: %v", err)
	return f.warn("places that no jump can probe have no kernel uprobe to fall back on: run as root; the kernel needs CONFIG_UPROBE_EVENTS")
}

func checkPerf(err error, paranoid string, c capabilities) finding {
	f := fine("uprobes", "perf_event_open offers them (kernel.perf_event_paranoid is %s)", paranoid)
	if err != nil {
		f.Found = fmt.Sprintf("perf_event_open offers none: %v", err)
		return f.warn("the tactic uprobe and bench's comparison are not available")
	}
	if !c.has(unix.CAP_PERFMON) && !c.has(unix.CAP_SYS_ADMIN) {
		return f.warn("this user may not place them: CAP_PERFMON or root is needed")
	}
	return f
}
