package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// guestDemoMost bounds a demo on a machine that is busy.
const guestDemoMost = 2 * guestDemoLimit

// guestDemoText is all that the demo writes, with the numbers that are compared in groups.
var guestDemoText = regexp.MustCompile(`^== 1\. A Linux kernel, vmlinuz-[^\n]+
   It is up after [\d.]+ s\. [^\n]+ Linux (?P<release>\S+) at 0x(?P<base>ffffffff[0-9a-f]{8})
   \(physical 0x[0-9a-f]+\), and its (?P<symbols>\d+) symbols: found in [\d.]+ s\.

== 2\. The examples of Linux's documentation go into the kernel while it runs[^\n]+
   [^\n]+
     p:myprobe do_sys_openat2 dfd=%di:s32 filename=\+0\(%si\):ustring flags=\+0\(%dx\):x64 mode=\+8\(%dx\):x64
     r:myretprobe do_sys_openat2 \$retval:s32
     p:myread vfs_read count=%dx:u64
     p:myreceive tcp_v4_rcv skb=%di:x64

== 3\. [^\n]+

(?P<header>(?:#[^\n]*\n)+)(?P<lines>(?: [^\n]+\n){12})
== 4\. (?P<equal>\d+) of (?P<all>\d+) lines of these calls are equal but for the times\.
   \(left out: [^\n]+
   EVENT +OUR LINES +GUEST'S OWN +PROGRAM
(?P<counts>   myprobe [ \d]+
   myretprobe [ \d]+
   myread [ \d]+
   myreceive [ \d]+
)   \(PROGRAM is [^\n]+

== 5\. The listing[^\n]+
(?P<list>(?:[0-9a-f]{16}  [kr]  \w+\+0x[0-9a-f]+    \[OPTIMIZED\]
){4})   and of the guest's own:
(?P<own>(?:[0-9a-f]{16}  [kr]  \w+\+0x0    \[FTRACE\]
){4})
== 6\. The summary; [^\n]+
(?P<summary>myprobe hits=\d+ missed=0 lost=0 tactic=jump
myretprobe hits=\d+ missed=0 lost=0 tactic=jump unwound=0 active=\d+
myread hits=\d+ missed=0 lost=0 tactic=jump
myreceive hits=\d+ missed=0 lost=0 tactic=jump
)   (?P<code>\d+) bytes of the kernel's code are those from before, the listing is empty

== 7\. The guest goes on: 1000 more calls work, [^\n]+
$`)

func TestGuestDemo(t *testing.T) {
	d := newDemoTest(t)
	t.Run("whole", func(t *testing.T) {
		cmd, tmp := d.command(t, guestDemoMost, "--guest")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Errorf("demo --guest: %v", err)
		}
		if s := errs.String(); s != "" && !strings.HasPrefix(s, "kprobe: fetching ") {
			t.Errorf("stderr: %s", s)
		}
		m := guestDemoText.FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("the demo does not show what it should:\n%s", out.String())
		}
		group := func(name string) string { return m[guestDemoText.SubexpIndex(name)] }
		checkGuestDemoLines(t, group("lines"))
		checkGuestDemoCounts(t, group)
		checkGuestDemoList(t, group)
		emptyDir(t, tmp)
	})
	t.Run("interrupted", d.guestInterrupted)
	t.Run("killed", d.guestKilled)
}

// demoTimes is what may differ between two lines of a call.
var demoTimes = regexp.MustCompile(`\] .{5} +[0-9.]+: `)

// demoCallers is what may differ at a return.
var demoCallers = regexp.MustCompile(`\(\w+\+0x[0-9a-f]+/0x[0-9a-f]+ <- `)

// checkGuestDemoLines checks that each line of ours has the guest's own below it.
func checkGuestDemoLines(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i += 2 {
		var pair [2]string
		for k := range pair {
			pair[k] = demoCallers.ReplaceAllString(demoTimes.ReplaceAllString(lines[i+k], "] "), "(<- ")
		}
		if pair[0] != pair[1] {
			t.Errorf("lines of one call:\n%s\n%s", lines[i], lines[i+1])
		}
	}
	for _, want := range []string{
		`myprobe: \(do_sys_openat2\+0x0/0x\w+\) dfd=-100 filename="/no/such/file" flags=0x8000 mode=0x0\n`,
		`myprobe: \(do_sys_openat2\+0x0/0x\w+\) dfd=-100 filename="/tmp/note" flags=0x8241 mode=0x1a4\n`,
		`<- do_sys_openat2\) arg1=-2\n`, `<- do_sys_openat2\) arg1=[3-9]\n`,
		`myread: \(vfs_read\+0x0/0x\w+\) count=1\n`,
		`myreceive: \(tcp_v4_rcv\+0x0/0x\w+\) skb=0xffff[0-9a-f]{12}\n`,
	} {
		if n := len(regexp.MustCompile(want).FindAllString(text, -1)); n != 2 {
			t.Errorf("%d lines have %s, want 2:\n%s", n, want, text)
		}
	}
}

// checkGuestDemoCounts checks that both tracers and the program agree, and how much was compared.
func checkGuestDemoCounts(t *testing.T, group func(string) string) {
	t.Helper()
	least := map[string]uint64{"myprobe": 1000, "myretprobe": 1000, "myread": 500, "myreceive": 200}
	sum := uint64(0)
	for line := range strings.Lines(group("counts")) {
		f := strings.Fields(line) // event, ours, the guest's own, the program's
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil || f[1] != f[2] || f[2] != f[3] || n < least[f[0]] || f[0] != "myreceive" && n != least[f[0]] {
			t.Errorf("counts %q, want all alike and %d: %v", line, least[f[0]], err)
		}
		sum += n
	}
	if group("equal") != group("all") || group("all") != strconv.FormatUint(sum, 10) {
		t.Errorf("%s of %s lines are equal, the table has %d", group("equal"), group("all"), sum)
	}
	for line := range strings.Lines(group("summary")) {
		name, rest, _ := strings.Cut(line, " hits=")
		hits, _, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseUint(hits, 10, 64); err != nil || n < least[name] {
			t.Errorf("summary %q: %v", line, err)
		}
	}
	if n, err := strconv.Atoi(group("code")); err != nil || n < 1<<20 {
		t.Errorf("%s bytes of code compared", group("code"))
	}
	if n, err := strconv.Atoi(group("symbols")); err != nil || n < 10000 {
		t.Errorf("%s symbols", group("symbols"))
	}
}

// checkGuestDemoList checks that both listings have the same functions.
func checkGuestDemoList(t *testing.T, group func(string) string) {
	t.Helper()
	for _, text := range []string{group("list"), group("own")} {
		for _, want := range []string{"  k  do_sys_openat2+", "  r  do_sys_openat2+", "  k  vfs_read+", "  k  tcp_v4_rcv+"} {
			if strings.Count(text, want) != 1 {
				t.Errorf("listing without %q:\n%s", want, text)
			}
		}
	}
}

// emptyDir checks that no file of a demo was left.
func emptyDir(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 0 {
		t.Errorf("files left: %v, %v", files, err)
	}
}

// demoMachine is what a running demo has told of its guest, in the guest's directory.
type demoMachine struct {
	PID   int
	Files []string
}

func machineIn(t *testing.T, tmp string) (m demoMachine) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(tmp, "kprobe-demo-*", "guest.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("guests %q, %v", found, err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &m); err != nil || m.PID == 0 || len(m.Files) < 4 {
		t.Fatalf("%s: %+v, %v", found[0], m, err)
	}
	return m
}

// gone checks that the guest has ended and its files are removed.
func (m *demoMachine) gone(t *testing.T, tmp string) {
	t.Helper()
	if runs(m.PID) {
		t.Errorf("QEMU, process %d, still runs", m.PID)
	}
	for _, f := range m.Files {
		if _, err := os.Stat(f); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", f, err)
		}
	}
	emptyDir(t, tmp)
}

// guestInterrupted sends what a terminal's Ctrl-C sends, to the whole group.
func (d *demoTest) guestInterrupted(t *testing.T) {
	cmd, tmp := d.command(t, guestDemoMost, "--guest")
	errs := until(t, cmd, 3)
	m := machineIn(t, tmp)
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || errs.String() != "kprobe: interrupted: the guest is ended\n" {
		t.Errorf("interrupted: %v, stderr %q", err, errs.String())
	}
	m.gone(t, tmp)
}

// guestKilled kills the demo while its probes are armed: the guest ends by itself.
func (d *demoTest) guestKilled(t *testing.T) {
	cmd, tmp := d.command(t, guestDemoMost, "--guest")
	until(t, cmd, 3)
	m := machineIn(t, tmp)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for end := time.Now().Add(guestDemoMost); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if files, err := os.ReadDir(tmp); err == nil && len(files) == 0 && !runs(m.PID) {
			break
		}
	}
	m.gone(t, tmp)
}
