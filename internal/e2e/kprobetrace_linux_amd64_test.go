package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// overTracefs runs a command of the shell in the kernel's place of tracefs, where the mount stands in a mount namespace of the command's own.
func (m *mounted) overTracefs(command string) string {
	m.t.Helper()
	cmd := exec.Command("unshare", "-m", "/bin/sh", "-c", "mount --bind "+m.dir+" /sys/kernel/tracing && cd /sys/kernel/tracing || exit 99\n"+command)
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Errorf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// readmeSession is the session of kprobetrace.rst as README has it.
func readmeSession(t *testing.T) []shellStep {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## The session of kprobetrace.rst\n")
	if ok {
		_, rest, ok = strings.Cut(rest, "```console\n")
	}
	block, _, end := strings.Cut(rest, "```\n")
	if !ok || !end {
		t.Fatal("README has no session of kprobetrace.rst")
	}
	return steps(block)
}

// kprobetraceCommands are the commands of the session, in the document's order.
var kprobetraceCommands = []string{
	`echo 'p:myprobe do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)' > /sys/kernel/tracing/kprobe_events`,
	`echo 'r:myretprobe do_sys_open $retval' >> /sys/kernel/tracing/kprobe_events`,
	`cat /sys/kernel/tracing/events/kprobes/myprobe/format`,
	`echo > /sys/kernel/tracing/kprobe_events`,
	`echo -:myprobe >> kprobe_events`,
	`echo 1 > /sys/kernel/tracing/events/kprobes/myprobe/enable`,
	`echo 1 > /sys/kernel/tracing/events/kprobes/myretprobe/enable`,
	`echo 1 > tracing_on`,
	`echo 0 > tracing_on`,
	`cat /sys/kernel/tracing/trace`,
}

// checkCommands checks that all of the session's commands are among steps, in their order, and that steps has none but those. Where the
// document is beside the project, its commands are these.
func checkCommands(t *testing.T, steps []shellStep) {
	t.Helper()
	known := map[string]bool{}
	for _, c := range kprobetraceCommands {
		known[c] = true
	}
	next := 0
	for _, s := range steps {
		if next < len(kprobetraceCommands) && s.command == kprobetraceCommands[next] {
			next++
		}
		if !known[s.command] && !strings.HasPrefix(s.command, "# Open something") {
			t.Errorf("README runs %q, which kprobetrace.rst does not", s.command)
		}
	}
	if next < len(kprobetraceCommands) {
		t.Fatalf("README's session does not come to %q", kprobetraceCommands[next])
	}
	files, err := filepath.Glob("../../../shared/documents/004_*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		_, usage, _ := strings.Cut(string(text), "To add a probe as a new event")
		var have []string
		for _, m := range regexp.MustCompile(`(?m)^\d+ (?:# )?((?:echo|cat) .*)$`).FindAllStringSubmatch(usage, -1) {
			have = append(have, m[1])
		}
		if got, want := strings.Join(have, "\n"), strings.Join(kprobetraceCommands, "\n"); got != want {
			t.Errorf("the document's commands are\n%s\nnot\n%s", got, want)
		}
	}
}

// callsOf3 are the calls that sysopen makes in turn, which are those of the document: who calls, the third and the fourth argument, and the result.
var callsOf3 = []struct {
	caller      string
	flags, mode uint64
	ret         string
}{
	{"sys_openat", 0x8000, 0, "0xfffffffffffffffe"},
	{"sys_open", 0x8000, 0o666, "0x3"},
	{"sys_open", 0x98800, 0o20, "0x3"},
}

// TestKprobetraceSession is the session of kprobetrace.rst as README has it: what README says the commands print they print, but for addresses,
// times, pids and offsets. Those are the program's own.
func TestKprobetraceSession(t *testing.T) {
	t.Parallel()
	session := readmeSession(t)
	checkCommands(t, session)
	p := program(t, "sysopen")
	before := stateOf(t, p.PID)
	m := mount(t, p)
	byProgram := regexp.MustCompile(`\b(dfd|mode)=0x[0-9a-f]+`)
	plain := func(s string) string { return normal(byProgram.ReplaceAllString(s, "$1=ANY")) }
	from := monotonic(t)
	var n map[string]uint64
	var last string
	for _, s := range session {
		if strings.HasPrefix(s.command, "#") {
			n = p.Counts(s.command[strings.LastIndex(s.command, "go "):])
			continue
		}
		last = m.overTracefs(s.command)
		if plain(last) != plain(s.text) {
			t.Errorf("%s prints\n%s\nand in README\n%s", s.command, last, s.text)
		}
	}
	if n["calls"] != 3 || n["failed"] != 1 {
		t.Fatalf("%v", n)
	}
	exe := symbolsIn(t, p.Path)
	record := regexp.MustCompile(`(?m)^ +sysopen-(\d+) +\[\d{3}\] \.{5} +(\d+\.\d{6}): (\w+): \(([^)]+)\) (.*)$`).FindAllStringSubmatch(last, -1)
	if len(record) != 6 {
		t.Fatalf("%d records:\n%s", len(record), last)
	}
	for i, r := range record {
		at, err := strconv.ParseFloat(r[2], 64)
		if to := monotonic(t); err != nil || at < from-1e-6 || at > to {
			t.Errorf("%s: not from %f to %f, %v", r[0], from, to, err)
		}
		from = at
		call := callsOf3[i/2]
		event, place, args := "myprobe", exe.offset("do_sys_open", 0), fmt.Sprintf(`dfd=0x[0-9a-f]+ filename=0x%x flags=0x%x mode=0x[0-9a-f]+`, call.flags, call.mode)
		if i == 4 {
			args = strings.TrimSuffix(args, "[0-9a-f]+") + strconv.FormatUint(n["word"], 16)
		}
		if i%2 == 1 {
			event, place, args = "myretprobe", exe.offset(call.caller, exe.behindCall(call.caller, "do_sys_open"))+" <- do_sys_open", "arg1="+call.ret
		}
		if r[1] != pid(p) || r[3] != event || r[4] != place || !regexp.MustCompile("^"+args+"$").MatchString(r[5]) {
			t.Errorf("%s: want pid %d, %s: (%s) %s", r[0], p.PID, event, place, args)
		}
	}
	if err := unix.Unmount(m.dir, 0); err != nil {
		t.Error(err)
	}
	if err := m.ended(); err != nil {
		t.Errorf("%v: %s", err, m.errs)
	}
	before.same(t)
}

// monotonic is the clock of the records, in seconds.
func monotonic(t *testing.T) float64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano()).Seconds()
}

// elfSymbols are the symbols of an ELF file.
type elfSymbols struct {
	t    *testing.T
	path string
	at   map[string]elf.Symbol
}

func symbolsIn(t *testing.T, path string) *elfSymbols {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	s := &elfSymbols{t, path, map[string]elf.Symbol{}}
	for _, sym := range list {
		s.at[sym.Name] = sym
	}
	return s
}

// offset is a place in a function as records show it.
func (s *elfSymbols) offset(name string, off uint64) string {
	return fmt.Sprintf("%s+0x%x/0x%x", name, off, s.at[name].Size)
}

// behindCall is the offset in a function of the instruction behind its call of another one, which objdump finds.
func (s *elfSymbols) behindCall(name, called string) uint64 {
	s.t.Helper()
	out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", "--disassemble="+name, s.path).Output()
	if err != nil {
		s.t.Fatalf("install binutils: %v", err)
	}
	m := regexp.MustCompile(`call +[0-9a-f]+ <` + called + `>\n +([0-9a-f]+):`).FindSubmatch(out)
	if m == nil {
		s.t.Fatalf("%s does not call %s:\n%s", name, called, out)
	}
	at, err := strconv.ParseUint(string(m[1]), 16, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return at - s.at[name].Value
}
