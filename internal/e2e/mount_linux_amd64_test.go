package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/ringpage"
	"kprobes.dev/kprobes/internal/testprog"
)

// mounted is a `kprobe mount` that runs.
type mounted struct {
	t    testing.TB
	dir  string
	cmd  *exec.Cmd
	errs *locked
	done chan error
}

// mount mounts the files of a process.
func mount(t testing.TB, p *testprog.Proc) *mounted {
	t.Helper()
	return mountAt(t, t.TempDir(), "-p", pid(p))
}

func mountAt(t testing.TB, dir string, args ...string) *mounted {
	t.Helper()
	m := &mounted{t: t, dir: dir, cmd: command(t, append([]string{"mount", dir}, args...)...), errs: &locked{}, done: make(chan error, 1)}
	m.cmd.Stderr = m.errs
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { m.done <- m.cmd.Wait() }()
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = m.cmd.Process.Kill()
	})
	within(t, "the files are mounted", func() bool { return strings.Contains(m.errs.String(), "the files are at") })
	return m
}

// ended waits until the command has ended, and gives its error.
func (m *mounted) ended() error {
	m.t.Helper()
	select {
	case err := <-m.done:
		return err
	case <-time.After(patience):
		m.t.Fatalf("kprobe mount goes on: %s", m.errs)
	}
	return nil
}

// sh runs a script of the shell in a directory, and gives what it prints, errors too.
func sh(t testing.TB, dir, script string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	return out.String()
}

func (m *mounted) sh(script string) string {
	m.t.Helper()
	return sh(m.t, m.dir, script)
}

// is checks what a script prints.
func (m *mounted) is(script, want string) {
	m.t.Helper()
	if got := m.sh(script); got != want {
		m.t.Errorf("%s: %q, want %q", script, got, want)
	}
}

// TestMount has a program with a do_sys_open go through what kprobetrace.rst describes, up to the end of the mount.
func TestMount(t *testing.T) {
	p := program(t, "opens")
	before := stateOf(t, p.PID)
	m := mount(t, p)
	m.is(`echo 'p:myprobe do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)' > kprobe_events`, "")
	m.is(`echo 'r:myretprobe do_sys_open ret=$retval' >> kprobe_events`, "")
	m.is(`cat events/kprobes/myprobe/format`, `name: myprobe
ID: 20
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:unsigned long __probe_ip;	offset:8;	size:8;	signed:0;
	field:u64 dfd;	offset:16;	size:8;	signed:0;
	field:u64 filename;	offset:24;	size:8;	signed:0;
	field:u64 flags;	offset:32;	size:8;	signed:0;
	field:u64 mode;	offset:40;	size:8;	signed:0;

print fmt: "(%lx) dfd=0x%Lx filename=0x%Lx flags=0x%Lx mode=0x%Lx", REC->__probe_ip, REC->dfd, REC->filename, REC->flags, REC->mode
`)
	m.is(`echo 1 > events/kprobes/myprobe/enable; echo 1 > events/kprobes/myretprobe/enable; echo 1 > tracing_on`, "")
	if n := p.Counts("go 6"); n["failed"] != 3 {
		t.Fatalf("%v", n)
	}
	m.is(`echo 0 > tracing_on`, "")
	text := m.sh(`cat trace`)
	entry := regexp.MustCompile(fmt.Sprintf(`(?m)^ +opens-%d +\[\d{3}\] \.{5} +\d+\.\d{6}: myprobe: \(do_sys_open\+0x0/0x[0-9a-f]+\) dfd=0x[0-9a-f]+ filename=0x0 flags=0x1a4 mode=0x[0-9a-f]+$`, p.PID))
	exit := regexp.MustCompile(fmt.Sprintf(`(?m)^ +opens-%d +\[\d{3}\] \.{5} +\d+\.\d{6}: myretprobe: \(main\+0x[0-9a-f]+/0x[0-9a-f]+ <- do_sys_open\) ret=0x(3|fffffffffffffffe)$`, p.PID))
	if a, b := len(entry.FindAllString(text, -1)), len(exit.FindAllString(text, -1)); a != 6 || b != 6 || !strings.Contains(text, "# entries-in-buffer/entries-written: 12/12   #P:") {
		t.Errorf("%d entries, %d returns:\n%s", a, b, text)
	}
	m.is(`cat kprobe_profile`, fmt.Sprintf("  %-44s %15d %15d\n  %-44s %15d %15d\n", "myprobe", 6, 0, "myretprobe", 6, 0))
	if list := m.sh(`cat kprobes/list`); !regexp.MustCompile(`^([0-9a-f]{12}  [kr]  do_sys_open\+0x0    \[OPTIMIZED\]\n){2}$`).MatchString(list) {
		t.Errorf("kprobes/list: %q", list)
	}
	m.is(`echo > kprobe_events`, "/bin/sh: 1: cannot create kprobe_events: Device or resource busy\n")
	m.is(`echo -:myprobe >> kprobe_events`, "/bin/sh: 1: echo: echo: I/O error\n")
	m.is(`echo 0 > events/kprobes/enable; echo -:myprobe >> kprobe_events; cat kprobe_events`, "r:kprobes/myretprobe do_sys_open ret=$retval\n")
	m.is(`echo > kprobe_events; cat kprobe_events; ls events`, "enable\nftrace\nheader_event\nheader_page\n")
	m.is(`umount .. 2>/dev/null; cat trace | tail -n +13`, "")
	if err := unix.Unmount(m.dir, 0); err != nil {
		t.Error(err)
	}
	if err := m.ended(); err != nil {
		t.Errorf("%v: %s", err, m.errs)
	}
	before.same(t)
}

// TestMountFilter has a filter keep hits out of the buffer. A bad one is shown with a caret, and takes the one before away.
func TestMountFilter(t *testing.T) {
	p := program(t, "opens")
	m := mount(t, p)
	m.is(`echo 'r:back do_sys_open ret=$retval:s64 name=+0($arg2):string' > kprobe_events; cat events/kprobes/back/filter`, "none\n")
	m.is(`echo 1 > events/kprobes/back/enable; echo 'ret < 0 && name ~ "/no/*"' > events/kprobes/back/filter; cat events/kprobes/back/filter`, "ret < 0 && name ~ \"/no/*\"\n")
	p.Counts("go 10")
	m.is(`grep -c 'ret=-2 name="/no/such"' trace; grep -c ret=3 trace; cat kprobe_profile`, "5\n0\n"+fmt.Sprintf("  %-44s %15d %15d\n", "back", 10, 0))
	const log = `sed 's/^\[.*\] /[] /' error_log; : > error_log`
	m.is(`echo 'ret <' > events/kprobes/back/filter; cat events/kprobes/back/filter; `+log,
		"/bin/sh: 1: echo: echo: I/O error\nret <\n     ^\nparse_error: Invalid value (did you forget quotes)?\n\n"+
			"[] event filter parse error: error: Invalid value (did you forget quotes)?\n  Command: ret <\n                 ^\n")
	p.Counts("go 10")
	m.is(`grep -c ' back: ' trace`, "15\n")
	m.is(`echo 'ret == 3' > events/kprobes/filter; cat events/kprobes/back/filter; echo 0 > events/kprobes/back/filter; cat events/kprobes/back/filter`, "ret == 3\nnone\n")
	m.is(`echo 'nosuch == 3' > events/kprobes/filter; cat events/kprobes/back/filter; head -n 1 events/kprobes/filter; `+log,
		"nosuch == 3\n^\nparse_error: Couldn't find or set field in one of a subsystem's events\n\n### global filter ###\n"+
			"[] event filter parse error: error: Couldn't find or set field in one of a subsystem's events\n  Command: nosuch == 3\n           ^\n")
}

// TestMountNames has names come and go at once, also for a shell that stands in their directory, and for who has a file open.
func TestMountNames(t *testing.T) {
	p := program(t, "opens")
	m := mount(t, p)
	m.is(`echo 'p:g/one do_sys_open' >> kprobe_events; cd events/g; ls; ls one; echo 'p:g/two do_sys_open' >> ../../kprobe_events; ls; cat two/id`,
		"enable\nfilter\none\nenable\nfilter\nformat\nhist\nid\ntrigger\nenable\nfilter\none\ntwo\n21\n")
	m.is(`cd events/g; exec 3< one/enable; echo -:g/one >> ../../kprobe_events; ls; cat <&3; cat one/id`,
		"enable\nfilter\ntwo\ncat: -: No such device\ncat: one/id: No such file or directory\n")
	m.is(`echo x > events/new; mkdir events/new; rm trace; mv trace x; chmod 777 trace; cat nosuch`, `/bin/sh: 1: cannot create events/new: Permission denied
mkdir: cannot create directory ‘events/new’: Operation not permitted
rm: cannot remove 'trace': Operation not permitted
mv: cannot move 'trace' to 'x': Operation not permitted
chmod: changing permissions of 'trace': Operation not permitted
cat: nosuch: No such file or directory
`)
	m.is(`printf 'p:a do_sys_open\np:b do_sys_open' >> dynamic_events; cat available_events; echo 'g:* kprobes:b' > set_event; cat set_event; echo '!b' >> set_event; cat set_event; cat events/enable events/kprobes/enable; : > set_event; cat events/enable`,
		"kprobes:b\nkprobes:a\ng:two\nkprobes:b\ng:two\ng:two\nX\n0\n0\n")
}

// TestMountPipe reads trace_pipe: it waits for records, a signal ends that, poll(2) tells when there are some, and who does not want to
// wait is told.
func TestMountPipe(t *testing.T) {
	p := program(t, "opens")
	m := mount(t, p)
	m.is(`echo 'p:look do_sys_open mode=%cx:x32' >> kprobe_events; echo 1 > events/kprobes/look/enable`, "")
	f, err := os.OpenFile(filepath.Join(m.dir, "trace_pipe"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	var b [4096]byte
	if n, err := unix.Read(fd, b[:]); n > 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d bytes, %v, want EAGAIN", n, err)
	}
	polled := func(wait int) int16 {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(fds, wait)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			return fds[0].Revents
		}
	}
	if e := polled(0); e != 0 {
		t.Errorf("poll gives 0x%x where nothing is to be read", e)
	}
	ready := make(chan int16)
	go func() { ready <- polled(int(patience / time.Millisecond)) }()
	p.Counts("go 1")
	if e := <-ready; e != unix.POLLIN {
		t.Errorf("poll gives 0x%x where a record has come", e)
	}
	if n, err := unix.Read(fd, b[:]); err != nil || !strings.Contains(string(b[:n]), "look: (do_sys_open+0x0/") || b[n-1] != '\n' {
		t.Errorf("%q, %v", b[:max(n, 0)], err)
	}
	cat := exec.Command("cat", filepath.Join(m.dir, "trace_pipe"))
	var out bytes.Buffer
	cat.Stdout = &out
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	p.Counts("go 500")
	within(t, "all have been read", func() bool { return !strings.Contains(m.sh(`cat trace`), " look: ") })
	within(t, "cat waits for more", func() bool { return field(t, cat.Process.Pid, cat.Process.Pid, "State") == "S (sleeping)" })
	if err := cat.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cat.Wait(); err == nil || strings.Count(out.String(), "mode=0x1a4\n") != 500 {
		t.Errorf("%v, %d lines", err, strings.Count(out.String(), "\n"))
	}
}

// TestMountEnds has a mount end with its target, with a signal, and by SIGKILL of what holds the target: then the next one, or kprobe detach, takes away what is
// left.
func TestMountEnds(t *testing.T) {
	p := program(t, "opens")
	before := stateOf(t, p.PID)
	arm := `echo 'p:look do_sys_open' >> kprobe_events; echo 1 > events/enable`
	m := mount(t, p)
	m.is(arm, "")
	if err := m.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := m.ended(); err != nil {
		t.Errorf("%v: %s", err, m.errs)
	}
	m.is("ls", "")
	before.same(t)
	for _, how := range []string{"mount", "detach"} {
		m = mount(t, p)
		m.is(arm, "")
		if err := unix.Kill(holderPID(t, p.PID), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := m.ended(); err == nil || !strings.Contains(m.errs.String(), "was killed") {
			t.Errorf("%v: %s", err, m.errs)
		}
		if _, err := os.ReadDir(m.dir); !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("after SIGKILL: %v", err)
		}
		if how == "detach" {
			if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 || !strings.Contains(o.stderr, "unmounted") {
				t.Errorf("detach: %v", o)
			}
		} else {
			again := mountAt(t, m.dir, "-p", pid(p))
			again.is(arm+"; cat events/enable", "1\n")
			if err := unix.Unmount(m.dir, 0); err != nil {
				t.Error(err)
			}
			if err := again.ended(); err != nil {
				t.Errorf("%v: %s", err, again.errs)
			}
		}
		m.is("ls", "")
		right(t, p, "go 10")
	}
	m = mount(t, p)
	m.is(arm, "")
	p.Kill()
	if err := m.ended(); err != nil {
		t.Errorf("%v: %s", err, m.errs)
	}
	m.is("ls", "")
}

// TestMountEndsWithReaders has a mount end while somebody waits for records, also where the files were unmounted before: all come to their end, and who is told
// to end meanwhile does.
func TestMountEndsWithReaders(t *testing.T) {
	p := program(t, "opens")
	for round := range 6 {
		m := mount(t, p)
		var cats []*exec.Cmd
		for _, name := range []string{"trace_pipe", "per_cpu/cpu0/trace_pipe_raw", "per_cpu/cpu1/trace_pipe_raw"} {
			cat := exec.Command("cat", filepath.Join(m.dir, name))
			if err := cat.Start(); err != nil {
				t.Fatal(err)
			}
			cats = append(cats, cat)
			within(t, "a reader", func() bool { // that waits: it has the file open, and sleeps
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", cat.Process.Pid))
				return strings.HasPrefix(string(b), "request_wait")
			})
		}
		unmounted := round%2 == 0 // the command ends by itself, perhaps before the signal comes, or by it once all probes are out
		if unmounted {
			if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		if round%3 == 0 {
			for _, cat := range cats {
				_ = cat.Process.Signal(unix.SIGTERM)
			}
		}
		if err := m.cmd.Process.Signal(unix.SIGTERM); err != nil && !(unmounted && errors.Is(err, os.ErrProcessDone)) {
			t.Fatal(err)
		}
		if err := m.ended(); err != nil && !(unmounted && m.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == unix.SIGTERM) {
			t.Errorf("%v: %s", err, m.errs)
		}
		for _, cat := range cats {
			_ = cat.Wait() // by its signal, or since the files are gone
		}
		if s := m.errs.String(); strings.Contains(s, "invalid argument") {
			t.Errorf("round %d: %s", round, s)
		}
	}
}

// TestMountEndsForPollers: who polls a file of a mount that ends is woken, while another command has the target held on.
func TestMountEndsForPollers(t *testing.T) {
	p := program(t, "opens")
	other := joins(t, p, 1, "trace", "--stat", "p:look do_sys_open")
	m := mount(t, p)
	f, err := os.Open(filepath.Join(m.dir, "trace_pipe"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	woken := make(chan int16, 1)
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); n != 0 || err != nil {
		t.Fatalf("%d ready, %v", n, err)
	}
	go func() {
		_, _ = unix.Poll(fds, -1)
		woken <- fds[0].Revents
	}()
	if err := m.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := m.ended(); err != nil {
		t.Errorf("%v: %s", err, m.errs)
	}
	select {
	case got := <-woken:
		if got == 0 {
			t.Error("poll tells nothing")
		}
	case <-time.After(patience):
		t.Error("the poller waits on")
	}
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, unix.ENODEV) {
		t.Errorf("read: %v", err)
	}
	right(t, p, "go 10")
	other.interrupt()
	if n := other.wait().totals["look"].hits; n != 10 {
		t.Errorf("the other has counted %d", n)
	}
}

// TestMountCommand mounts the files of a program that is started for it, whose status is the command's.
func TestMountCommand(t *testing.T) {
	dir := t.TempDir()
	ready := tempFile(t, "ready")
	m := mountAt(t, dir, "--", "/bin/sh", "-c", "until [ -e "+ready+" ]; do sleep 0.1; done; exit 7")
	m.is(`echo 'p:w libc.so.6:write' >> kprobe_events; echo 1 > events/enable; cat kprobe_events`, "p:kprobes/w libc.so.6:write\n")
	write(t, ready, "")
	var exit *exec.ExitError
	if err := m.ended(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v, want status 7: %s", err, m.errs)
	}
	m.is("ls", "")
}

// TestMountCopies has programs copy files of the mount. Some try sendfile(2), copy_file_range(2) or splice(2) first, and are told to read.
// A mapping has no page that could be wrong.
func TestMountCopies(t *testing.T) {
	p := program(t, "opens")
	m := mount(t, p)
	m.is(`echo 'p:look do_sys_open' >> kprobe_events; echo 1 > events/kprobes/look/enable`, "")
	box, err := guestkit.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	const line = "p:kprobes/look do_sys_open\n"
	for _, how := range []string{"cat kprobe_events", "head -n 1 kprobe_events", "tail -n 1 kprobe_events", "grep . kprobe_events", "cp kprobe_events " + out + "; cat " + out + "/kprobe_events"} {
		m.is(how, line)
		m.is(box+" "+how, line)
	}
	m.is("tail -c 27 kprobe_events", line)
	m.is("wc -c kprobe_events; stat -c %s kprobe_events", fmt.Sprintf("%d kprobe_events\n4096\n", len(line)))
	f, err := os.Open(filepath.Join(m.dir, "kprobe_events"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to := filepath.Join(out, "sent")
	write(t, to, "")
	w, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if n, err := unix.Sendfile(int(w.Fd()), int(f.Fd()), nil, 100); n > 0 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("sendfile: %d bytes, %v, want EINVAL", n, err)
	}
	if n, err := io.Copy(w, f); err != nil || n != int64(len(line)) {
		t.Errorf("io.Copy: %d bytes, %v", n, err)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := firstByte(mapped); err == nil {
		t.Errorf("a mapping holds %q", b)
	}
	if err := unix.Munmap(mapped); err != nil {
		t.Error(err)
	}
	for _, head := range []string{box + " head", "head"} {
		p.Counts("go 2")
		m.is("timeout 20 "+head+" -n 2 trace_pipe 2>/dev/null | grep -c look:", "2\n") // GNU's would like to seek, as at a kernel's
	}
}

// TestMountSplice has a stream in binary form spliced, which gives whole pages, and never waits. A page that is taken in parts is one page.
func TestMountSplice(t *testing.T) {
	p := program(t, "rate")
	m := mount(t, p)
	m.is("echo 'p:a rate_call' > kprobe_events; echo 1 > events/kprobes/a/enable", "")
	var set unix.CPUSet
	set.Set(0)
	if err := unix.SchedSetaffinity(p.PID, &set); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(m.dir, "per_cpu/cpu0/trace_pipe_raw"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	spliced := func(n int) (b []byte, err error) {
		got, err := unix.Splice(int(f.Fd()), nil, int(w.Fd()), nil, n, 0)
		if err != nil || got == 0 {
			return nil, err
		}
		b = make([]byte, got)
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatal(err)
		}
		return b, nil
	}
	if b, err := spliced(ringpage.PageSize); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("of no records: %d bytes, %v, want EAGAIN", len(b), err)
	}
	const calls = 3000
	right(t, p, fmt.Sprintf("go %d", calls))
	m.is("grep entries per_cpu/cpu0/stats", fmt.Sprintf("entries: %d\n", calls)) // all have come
	var pages []byte
	for _, n := range []int{1000, 3000, 96, 5000, 3 * ringpage.PageSize, 3 * ringpage.PageSize} {
		b, err := spliced(n)
		if err != nil {
			t.Fatalf("%d bytes behind %d: %v", n, len(pages), err)
		}
		pages = append(pages, b...)
	}
	for records := 0; records < calls; {
		records = 0
		for page := range slices.Chunk(pages[:len(pages)/ringpage.PageSize*ringpage.PageSize], ringpage.PageSize) {
			if _, err := ringpage.Read(page, func(uint64, []byte) error { records++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		b, err := spliced(64 << 10)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		if len(b) == 0 && records != calls {
			t.Fatalf("%d records of %d", records, calls)
		}
		pages = append(pages, b...)
	}
	right(t, p, "go 1000")
	m.is("grep entries per_cpu/cpu0/stats", "entries: 1000\n")
	part := make([]byte, 100)
	if n, err := f.Read(part); n != len(part) || err != nil {
		t.Fatal(n, err)
	}
	for range 2 {
		if b, err := spliced(ringpage.PageSize); !errors.Is(err, unix.EINVAL) {
			t.Errorf("from the middle of a page: %d bytes, %v, want EINVAL", len(b), err)
		}
	}
	rest := make([]byte, ringpage.PageSize-len(part))
	if _, err := io.ReadFull(f, rest); err != nil {
		t.Fatal(err)
	}
	if _, err := ringpage.Read(append(part, rest...), func(uint64, []byte) error { return nil }); err != nil {
		t.Errorf("the rest of the page is not there: %v", err)
	}
	again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := spliced(ringpage.PageSize); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a node that is open twice: %d bytes, %v, want EINVAL", len(b), err)
	}
	again.Close()
	m.is("timeout 1 cp per_cpu/cpu0/trace_pipe_raw "+t.TempDir()+"/x; echo $?", "124\n") // it would wait for more
	m.is("echo 1 > snapshot; tail -c 96 per_cpu/cpu0/snapshot_raw | wc -c; cp per_cpu/cpu0/snapshot_raw "+t.TempDir()+"/y", "0\n")
}

// firstByte reads the first byte of a mapping. The signal for a page that is not there is an error.
func firstByte(m []byte) (b byte, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return m[0], nil
}

// TestMountOwnThreads has a target go to its own files while its events change: it gets EDEADLK, and no change waits for it.
func TestMountOwnThreads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := exec.Command("/bin/bash", "-c", `while :; do
	for f in tracing_on trace events/enable events/kprobes/e/enable instances/i/trace; do
		{ : < "$0/$f"; } 2>> "$1"
	done
done`, dir, filepath.Join(t.TempDir(), "errors"))
	errorsFile := target.Args[len(target.Args)-1]
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = target.Process.Kill()
		_ = target.Wait() // it was killed
	})
	m := mountAt(t, dir, "-p", fmt.Sprint(target.Process.Pid))
	m.is(`mkdir instances/i; echo 'p:e libc.so.6:write' > kprobe_events`, "")
	for range 20 {
		m.is(`echo 1 > events/enable; echo 0 > events/enable; cat kprobe_profile > /dev/null`, "")
	}
	within(t, "the target has been told", func() bool {
		b, err := os.ReadFile(errorsFile)
		return err == nil && strings.Contains(string(b), "Resource deadlock avoided")
	})
}
