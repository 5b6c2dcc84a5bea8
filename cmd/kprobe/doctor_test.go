package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

func TestHostChecks(t *testing.T) {
	bad := errors.New("bad")
	const root = capabilities(1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_PERFMON)
	for _, c := range []struct {
		name string
		got  finding
		want verdict
		says string
	}{
		{"kernel", checkKernel("6.18.44-x"), verdictOK, "6.18.44-x"},
		{"kernel that can not tell of rseq", checkKernel("5.12.0"), verdictWarn, "5.13"},
		{"kernel too old", checkKernel("4.16.1"), verdictFail, "4.17"},
		{"kernel without a number", checkKernel("strange"), verdictWarn, "understood"},
		{"root", checkPtrace(root), verdictOK, "every process"},
		{"user", checkPtrace(0), verdictWarn, "cap_sys_ptrace"},
		{"yama absent", checkYama("", false), verdictOK, "not in"},
		{"yama 0", checkYama("0", false), verdictOK, "is 0"},
		{"yama 1, user", checkYama("1", false), verdictWarn, "-- CMD"},
		{"yama 1, root", checkYama("1", true), verdictOK, "is 1"},
		{"yama 2, user", checkYama("2", false), verdictFail, "sysctl -w"},
		{"yama 2, root", checkYama("2", true), verdictOK, "is 2"},
		{"yama 3, root", checkYama("3", true), verdictFail, "boot"},
		{"selinux", checkSELinux("1 1"), verdictFail, "setsebool"},
		{"selinux off", checkSELinux("0 0"), verdictOK, ""},
		{"seccomp", checkOwnSeccomp("Name:\tx\nSeccomp:\t2\n"), verdictWarn, "container"},
		{"no seccomp", checkOwnSeccomp("Name:\tx\nSeccomp:\t0\n"), verdictOK, ""},
		{"memory writes", checkMemForce(bad), verdictWarn, "POKETEXT"},
		{"memory files", checkMemfd("2", bad), verdictFail, "vm.memfd_noexec=0"},
		{"memory files, old kernel", checkMemfd("", nil), verdictOK, "not in this kernel"},
		{"rseq", checkRseq(unix.ENOSYS), verdictWarn, "CONFIG_RSEQ"},
		{"guests", checkQEMU("/usr/bin/qemu-system-x86_64", nil), verdictOK, "-qmp unix:"},
		{"no guests", checkQEMU("", bad), verdictWarn, "apt-get install qemu-system-x86"},
		{"no tracefs", checkTracefs(kuprobe.ErrNoTracefs), verdictWarn, "mount -t tracefs"},
		{"tracefs not writable", checkTracefs(unix.EACCES), verdictWarn, "root"},
		{"no uprobes", checkPerf(bad, "2", root), verdictWarn, "bad"},
		{"uprobes, user", checkPerf(nil, "2", 0), verdictWarn, "CAP_PERFMON"},
		{"uprobes", checkPerf(nil, "2", root), verdictOK, "is 2"},
		{"mappings", checkMaps("65530", 20), verdictOK, "20 of"},
		{"many mappings", checkMaps("65530", 65000), verdictWarn, "max_map_count="},
		{"too many mappings", checkMaps("65530", 65525), verdictFail, "max_map_count="},
		{"mappings unknown", checkMaps("", 1), verdictWarn, ""},
		{"address space", checkAS(100*mib, 10*mib, 50*mib), verdictOK, "of at most 100"},
		{"address space too small", checkAS(100*mib, 60*mib, 50*mib), verdictFail, "prlimit"},
		{"file size too small", checkFsize(10*mib, 50*mib), verdictFail, "ulimit -f"},
		{"cgroup", checkCgroup(memory{true, 100 * mib, 90 * mib, "/x"}, 50*mib), verdictWarn, "10 MiB free of 100 MiB"},
		{"cgroup over its limit", checkCgroup(memory{true, 100 * mib, 101 * mib, "/x"}, mib), verdictWarn, "0 MiB free"},
		{"no cgroup", checkCgroup(memory{}, 50*mib), verdictOK, "not limited"},
		{"holder", checkHolder(&procfs.Holder{PID: 7}, nil), verdictFail, "7"},
		{"holder unknown", checkHolder(nil, bad), verdictWarn, "bad"},
		{"tracer", checkTracer(7), verdictFail, "7"},
		{"strict seccomp", checkSeccomp(&procfs.Status{Seccomp: procfs.SeccompStrict}), verdictFail, ""},
		{"open", checkOpen(7, fmt.Errorf("x: %w", process.ErrPermission)), verdictFail, "root"},
		{"trial", checkTrial(bad), verdictFail, "bad"},
	} {
		text := c.got.Found + " " + c.got.Do
		if c.got.Status != c.want || !strings.Contains(text, c.says) || c.got.Check == "" {
			t.Errorf("%s: %+v, want %s and %q", c.name, c.got, c.want, c.says)
		}
		if c.got.Status != verdictOK && c.got.Do == "" {
			t.Errorf("%s: %s without a word on what to do", c.name, c.got.Status)
		}
	}
}

func TestTell(t *testing.T) {
	fs := []finding{fine("one", "a\x1bb"), fine("two", "c").warn("change it")}
	var out bytes.Buffer
	if err := printFindings(&out, "text", fs); err != nil {
		t.Errorf("warnings alone: %v", err)
	}
	if want := "ok    one              a?b\nwarn  two              c\n                       change it\n"; out.String() != want {
		t.Errorf("text %q, want %q", out.String(), want)
	}
	if err := printFindings(&out, "text", append(fs, fine("three", "d").fail("give up"))); !errors.Is(err, errDoctor) {
		t.Errorf("a failure: error %v", err)
	}
}

// doctor runs the verb and gives its findings by their names, and the exit status.
func doctor(t *testing.T, args ...string) (map[string]finding, int) {
	t.Helper()
	cmd := exec.Command(command(t), append([]string{"doctor", "--format", "json"}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	fs := map[string]finding{}
	for line := range bytes.Lines(out) {
		var f finding
		if err := json.Unmarshal(line, &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if _, twice := fs[f.Check]; twice {
			t.Errorf("%s is told twice", f.Check)
		}
		fs[f.Check] = f
	}
	return fs, cmd.ProcessState.ExitCode()
}

// A program that can be probed goes on as before; one that is none of ours to probe is told
// as such.
func TestDoctor(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "bench"))
	fs, status := doctor(t, "-p", fmt.Sprint(p.PID))
	if status != 0 {
		t.Errorf("status %d: %+v", status, fs)
	}
	for _, name := range []string{
		"kernel", "rights", "yama", "own seccomp", "memory writes", "memory files", "rseq", "rdpid", "time stamps", "tracefs",
		"own mappings", "own memory", "own address space", "own file size", "trial", "process", "holder", "tracer", "seccomp",
		"program", "left behind", "stop", "breakpoints", "threads' rseq", "new code", "mappings", "memory", "address space",
	} {
		if f, ok := fs[name]; !ok || f.Status == verdictFail {
			t.Errorf("%s: %+v", name, f)
		}
	}
	p.Send("run bench_lea 3200 1")
	if line := p.Line(); !strings.Contains(line, `"calls":3200`) {
		t.Errorf("the program answers %q", line)
	}
}

func TestDoctorTellsWhoUsesSIGTRAP(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "trapuser"))
	fs, status := doctor(t, "-p", fmt.Sprint(p.PID))
	if f := fs["breakpoints"]; status != 0 || f.Status != verdictWarn || !strings.Contains(f.Found, "SIGTRAP") {
		t.Errorf("status %d, %+v", status, f)
	}
}

// A filter that kills for every call that it does not know must not meet one of ours.
func TestDoctorSparesAProcessUnderSeccomp(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "seccomp"), "kill")
	fs, _ := doctor(t, "-p", fmt.Sprint(p.PID))
	if f := fs["seccomp"]; f.Status != verdictWarn {
		t.Errorf("seccomp %+v", f)
	}
	if n := p.Counts("go 10"); n["bad"] != 0 || !p.Alive() {
		t.Errorf("counts %v", n)
	}
}

func TestDoctorFails(t *testing.T) {
	if fs, status := doctor(t, "-p", "4194304"); status != exitFailed || fs["process"].Status != verdictFail {
		t.Errorf("no process: status %d, %+v", status, fs["process"])
	}
}
