package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// perf runs perf probe, which takes the mount for tracefs, and gives what it prints.
func (m *mounted) perf(args ...string) string {
	m.t.Helper()
	cmd := exec.Command("perf", append([]string{"probe"}, args...)...)
	cmd.Env = append(os.Environ(), "TRACEFS_PATH="+m.dir, "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("install linux-perf: %s: %v: %s", cmd, err, out)
	}
	return string(out)
}

// records counts the records of an event whose arguments match a pattern.
func (m *mounted) records(event, args string) int {
	m.t.Helper()
	return len(regexp.MustCompile(`(?m): `+event+`: \([^)]+\)`+args+`$`).FindAllString(m.sh("cat trace"), -1))
}

// TestPerfProbe has perf probe make definitions of a program's debug information, which the mount takes as they are printed. The hits are
// the program's calls, and the arguments those of the calls.
func TestPerfProbe(t *testing.T) {
	t.Parallel()
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "sysopen")))
	m := mount(t, p)
	for _, def := range []string{
		"do_sys_open dfd filename:string flags mode:x16 word",
		"back=do_sys_open%return $retval:s64",
		"regs=do_sys_open %di %dx:u32 $stack $comm",
		"all=do_sys_open $params",
		"from=sys_open flags",
	} {
		for line := range strings.Lines(m.perf("-x", p.Path, "-D", def)) {
			line = strings.TrimSuffix(line, "\n")
			if !regexp.MustCompile(`^[pr]:probe_sysopen/\w+ ` + regexp.QuoteMeta(p.Path) + `:0x[0-9a-f]+( |$)`).MatchString(line) {
				t.Fatalf("perf probe -D %q prints %q", def, line)
			}
			m.is("echo '"+line+"' >> kprobe_events", "")
		}
	}
	m.is("wc -l < kprobe_events", "5\n")
	listed := m.perf("-l")
	for _, name := range []string{"do_sys_open", "back__return", "regs", "all", "from"} {
		if !strings.Contains(listed, "probe_sysopen:"+name+" ") {
			t.Errorf("perf probe -l does not list %s:\n%s", name, listed)
		}
	}
	m.is("echo 1 > events/probe_sysopen/enable", "")
	n := right(t, p, "go 9")
	for _, c := range []struct {
		event, args string
		want        int
	}{
		{"do_sys_open", " .*", 9},
		{"do_sys_open", ` dfd=3 filename_string="/no/such" flags=32768 mode_x16=0x0 word=0x[0-9a-f]+`, int(n["failed"])},
		{"do_sys_open", ` dfd=-100 filename_string="/etc/passwd" flags=32768 mode_x16=0x1b6 word=0x[0-9a-f]+`, 3},
		{"do_sys_open", ` dfd=-100 filename_string="/etc" flags=624640 mode_x16=0x10 word=0x[0-9a-f]+`, 3},
		{"do_sys_open", ` .* word=0x0`, 1}, // before the first call
		{"do_sys_open", fmt.Sprintf(` .* word=0x%x`, n["word"]), 8},
		{"back__return", ` \w+=3`, 6},
		{"back__return", ` \w+=-2`, 3},
		{"regs", ` arg1=0x3 arg2=32768 arg3=0x7f[0-9a-f]+ arg4="sysopen"`, 3},
		{"all", ` dfd=3 filename=0x[0-9a-f]+ flags=32768 mode=(0x)?0`, 3},
		{"from", ` flags=624640`, 3},
		{"from", ` flags=32768`, 3},
	} {
		if got := m.records(c.event, c.args); got != c.want {
			t.Errorf("%s%s: %d records, want %d:\n%s", c.event, c.args, got, c.want, m.sh("cat trace"))
		}
	}
	m.is("echo 0 > events/probe_sysopen/enable", "")
	m.perf("-d", "probe_sysopen:from")
	m.perf("-d", "probe_sysopen:*")
	m.is("cat kprobe_events", "")
}

// TestPerfProbeWrites has perf probe add, list and delete events itself, in uprobe_events: it is told of the mount by a variable, or finds it
// in the kernel's places, in a mount namespace of its own.
func TestPerfProbeWrites(t *testing.T) {
	t.Parallel()
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "sysopen")))
	m := mount(t, p)
	perf := m.perf
	for _, where := range []string{"TRACEFS_PATH", "bound"} {
		if where == "bound" {
			perf = m.perfBound
		}
		if out := perf("-x", p.Path, "opens=do_sys_open", "flags", "filename:string"); !strings.Contains(out, "probe_sysopen:opens ") {
			t.Errorf("%s: perf probe prints\n%s", where, out)
		}
		perf("-x", p.Path, "back=do_sys_open%return", "$retval:s64")
		at := fmt.Sprintf("%s:0x%016x", p.Path, fileOffset(t, p.Path, "do_sys_open"))
		m.is("cat uprobe_events", "p:probe_sysopen/opens "+at+" flags=%dx:s32 filename_string=+0(%si):string\nr:probe_sysopen/back__return "+at+" arg1=$retval:s64\n")
		if out := perf("-l"); !regexp.MustCompile(`probe_sysopen:opens +\(on do_sys_open@\S+ in \S+ with flags filename_string\)`).MatchString(out) {
			t.Errorf("%s: perf probe -l prints\n%s", where, out)
		}
		m.is("echo > trace; echo 1 > events/probe_sysopen/enable", "")
		before := p.Counts("go 0")
		n := right(t, p, "go 12")
		for event, args := range map[string]string{"opens": ` flags=32768 filename_string="/no/such"`, "back__return": " arg1=-2"} {
			if got, want := m.records(event, args), int(n["failed"]-before["failed"]); got != want || m.records(event, ".*") != 12 {
				t.Errorf("%s: %d records of %s%s, want %d:\n%s", where, got, event, args, want, m.sh("cat trace"))
			}
		}
		m.is("echo 0 > events/probe_sysopen/enable", "")
		perf("-d", "probe_sysopen:opens")
		perf("-d", "probe_sysopen:*")
		m.is("cat uprobe_events", "")
	}
}

// perfBound is perf where the mount stands in both of the kernel's places of tracefs.
func (m *mounted) perfBound(args ...string) string {
	m.t.Helper()
	script := `for d in /sys/kernel/tracing /sys/kernel/debug/tracing; do [ ! -d $d ] || mount --bind "$DIR" $d || exit; done; exec perf probe "$@"`
	cmd := exec.Command("unshare", append([]string{"-m", "/bin/sh", "-c", script, "sh"}, args...)...)
	cmd.Env = append(os.Environ(), "DIR="+m.dir, "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v: %s", cmd, err, out)
	}
	return string(out)
}

// fileOffset is where a function lies in its file.
func fileOffset(t *testing.T, path, name string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := symbolsIn(t, path).at[name].Value
	for _, s := range f.Progs {
		if s.Type == elf.PT_LOAD && s.Vaddr <= at && at < s.Vaddr+s.Filesz {
			return at - s.Vaddr + s.Off
		}
	}
	t.Fatalf("%s is in no segment of %s", name, path)
	return 0
}
