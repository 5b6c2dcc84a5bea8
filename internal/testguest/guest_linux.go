package testguest

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/guestkit/serial"
	"kprobes.dev/kprobes/target/guest/qemu"
)

//go:embed src
var sources embed.FS

const (
	// patience is how long the guest may be silent; nothing measures it. It is long
	// because software emulates the guest on machines that are busy.
	patience = 5 * time.Minute
	// cmdline boots with KASLR, as Debian's kernel does by itself, and shows warnings on the
	// console. The timer is not checked: on a busy host the check gives up, and the kernel dies of
	// it and starts anew.
	cmdline = "console=ttyS0 loglevel=5 panic=-1 no_timer_check"
)

// Options are a guest for a test.
type Options struct {
	Kernel guestkit.Build // the zero one is guestkit.Cloud
	CPUs   int            // 0 is 2
	// CPUModel "" is qemu64, and for another kernel than guestkit.Cloud qemu64 without cmpxchg16b:
	// behind one QEMU 7.2 now and then has the guest go on with flags that are none, which kernels of
	// 6.12 and later die of.
	CPUModel string
	Append   string            // behind the kernel's command line
	Threads  bool              // a thread for each vCPU: see StartOptions.OneThread for what QEMU may do then
	Icount   bool              // an instruction of the guest is a tick of its TSC
	Memory   int               // MB; 0 is 256
	Ring     int               // MB of the ivshmem device: as in StartOptions
	Files    map[string]string // path in the guest to file on the host: executable files of its initrd
}

// Guest is a booted guest. Its methods that take no testing.TB of their own fail the test
// that booted it, when the guest does not answer. One goroutine uses it at a time, or several
// in turn.
type Guest struct {
	Spec   qemu.Spec
	Kernel guestkit.Build

	log  string // the serial console's file
	wake *guestkit.Watchdog
	mu   sync.Mutex
	line *guestkit.Line
	tb   testing.TB
}

// Boot boots a guest and returns when its agent answers, some ten seconds later. It is ended with
// the test. o may be nil.
func Boot(tb testing.TB, o *Options) *Guest {
	tb.Helper()
	g, err := boot(tb, o)
	if err != nil {
		tb.Fatalf("guest: %v", err)
	}
	tb.Cleanup(func() {
		if err := g.close(); err != nil {
			tb.Errorf("end of the guest: %v", err)
		}
	})
	return g
}

// boot needs tb for what can be missing on this machine.
func boot(tb testing.TB, o *Options) (_ *Guest, err error) {
	tb.Helper()
	if o == nil {
		o = new(Options)
	}
	build := o.Kernel
	if build == (guestkit.Build{}) {
		build = guestkit.Cloud
	}
	kernel, box := image(tb, build)
	dir, err := os.MkdirTemp("", "testguest-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	initrd := filepath.Join(dir, "initrd")
	if err := makeInitrd(initrd, box, build, o.Files); err != nil {
		return nil, err
	}
	spec, err := qemu.Start(startOptions(o, kernel, initrd, dir))
	if err != nil {
		return nil, err
	}
	g := &Guest{Spec: spec, Kernel: build, log: filepath.Join(dir, "serial.log"), tb: tb}
	if g.wake, err = guestkit.StartWatchdog(spec); err != nil {
		return nil, errors.Join(err, qemu.End(spec))
	}
	if err := g.meet(dir); err != nil {
		err = fmt.Errorf("%w; its console:\n%s", err, g.Log())
		_ = g.close()
		return nil, err
	}
	return g, nil
}

func startOptions(o *Options, kernel, initrd, dir string) *qemu.StartOptions {
	s := &qemu.StartOptions{
		Kernel: kernel, Initrd: initrd, Append: strings.TrimSpace(cmdline + " " + o.Append),
		Memory: o.Memory, Ring: o.Ring, CPUs: o.CPUs, CPUModel: o.CPUModel, Icount: o.Icount, OneThread: !o.Threads, Dir: dir,
		Extra: guestkit.Serial(dir),
	}
	if s.CPUs == 0 {
		s.CPUs = 2
	}
	if s.CPUModel == "" && o.Kernel != (guestkit.Build{}) {
		s.CPUModel = "qemu64,-cx16"
	}
	return s
}

// makeInitrd writes the initial RAM disk, not compressed: emulated CPUs are slower at
// unpacking than the host is at writing.
func makeInitrd(out, box string, kernel guestkit.Build, extra map[string]string) error {
	hit, err := cbuild.Build(sources, "src", "hit")
	if err != nil {
		return err
	}
	agentFile, err := agent()
	if err != nil {
		return err
	}
	files, err := initrdFiles(box, agentFile, hit, kernel, extra)
	if err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := guestkit.WriteArchive(f, files); err != nil {
		return err
	}
	return f.Close()
}

// agent compiles the agent for the guest, for all guests of this process once.
var agent = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "testguest-agent-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "agent")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", out, "kprobes.dev/kprobes/internal/testguest/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, msg)
	}
	return os.ReadFile(out)
})

// meet connects to the agent's line before the guest's kernel gets there, and waits for the
// agent.
func (g *Guest) meet(dir string) (err error) {
	if g.line, err = guestkit.Dial(dir, patience); err != nil {
		return err
	}
	return g.line.Ready()
}

// close ends the guest.
func (g *Guest) close() error {
	if g.line != nil {
		g.line.Close()
	}
	err := qemu.End(g.Spec)
	if errors.Is(err, syscall.ENOENT) { // a test has ended it
		err = nil
	}
	if err == nil {
		err = g.wake.Dismiss()
	}
	return errors.Join(err, os.RemoveAll(filepath.Dir(g.log)))
}

// ask sends a request and waits for its answer.
func (g *Guest) ask(req *serial.Request, body []byte) (serial.Answer, []byte) {
	g.tb.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	a, out, err := g.line.Ask(req, body)
	if err != nil {
		g.tb.Fatalf("guest, %s %s%q: %v; QEMU says:\n%s\nits console ends:\n%s", req.Op, req.Path, req.Args, err, g.State(), tail(g.Log()))
	}
	return a, out
}

// State tells whether the vCPUs run, and where they are, as QEMU's monitor does; or why it does not: a tracer has it.
func (g *Guest) State() string {
	c, err := net.Dial("unix", g.Spec.QMP)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err.Error()
	}
	var out strings.Builder
	dec := json.NewDecoder(c)
	for _, ask := range []string{
		`{"execute":"qmp_capabilities"}`, `{"execute":"query-status"}`,
		`{"execute":"human-monitor-command","arguments":{"command-line":"info registers -a"}}`,
	} {
		if _, err := io.WriteString(c, ask+"\n"); err != nil {
			return out.String() + err.Error()
		}
		for {
			var m struct{ Return, Error any }
			if err := dec.Decode(&m); err != nil {
				return out.String() + err.Error()
			}
			if m.Return != nil || m.Error != nil { // else a greeting, or an event
				fmt.Fprintln(&out, m.Return, m.Error)
				break
			}
		}
	}
	return out.String()
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// Write writes text to a file by one write(2), and gives the errno of what failed, 0 for
// nothing. The file is truncated, or else appended to; it is made if need be.
func (g *Guest) Write(path, text string, trunc bool) syscall.Errno {
	g.tb.Helper()
	flags := syscall.O_WRONLY | syscall.O_CREAT | syscall.O_APPEND
	if trunc {
		flags = syscall.O_WRONLY | syscall.O_CREAT | syscall.O_TRUNC
	}
	a, _ := g.ask(&serial.Request{Op: "write", Path: path, Flags: flags, Mode: 0o644}, []byte(text))
	return syscall.Errno(a.Errno)
}

// Read reads a file.
func (g *Guest) Read(path string) (string, error) {
	g.tb.Helper()
	a, out := g.ask(&serial.Request{Op: "read", Path: path}, nil)
	return string(out), guestkit.Failed(&a)
}

// List gives the names in a directory.
func (g *Guest) List(dir string) ([]string, error) {
	g.tb.Helper()
	a, _ := g.ask(&serial.Request{Op: "list", Path: dir}, nil)
	return a.Names, guestkit.Failed(&a)
}

// Upload copies a file of the host into the guest, executable. The emulated serial line takes some
// 40 kB/s, on busy machines far less: large files belong in Options.Files.
func (g *Guest) Upload(path, from string) error {
	g.tb.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	flags := syscall.O_WRONLY | syscall.O_CREAT | syscall.O_TRUNC
	a, _ := g.ask(&serial.Request{Op: "write", Path: path, Flags: flags, Mode: 0o755}, b)
	return guestkit.Failed(&a)
}

// Result is how a command in the guest went.
type Result struct {
	Stdout, Stderr string
	Status         int // 128+N for a signal N
}

// Run runs a command and waits for its end. An error is that it could not be started.
func (g *Guest) Run(argv ...string) (Result, error) {
	g.tb.Helper()
	a, out := g.ask(&serial.Request{Op: "run", Args: argv}, nil)
	return Result{Stdout: string(out), Stderr: string(a.Stderr), Status: a.Status}, guestkit.Failed(&a)
}

// Shell runs a command of busybox's shell; one that fails ends the test. It returns what it
// prints.
func (g *Guest) Shell(command string) string {
	g.tb.Helper()
	r, err := g.Run("/bin/sh", "-c", command)
	if err != nil || r.Status != 0 {
		g.tb.Fatalf("guest: %s: status %d, %v: %s", command, r.Status, err, r.Stderr)
	}
	return r.Stdout
}

// Counts is what hit counted (src/hit.c).
type Counts struct {
	Calls, OK, Failed, Bytes uint64
	Errno                    int
	Ticks                    uint64 // of the TSC; with Options.Icount instructions
	PID                      int
}

// Hit makes n system calls of a kind in a tight loop, pinned to a vCPU (-1: not), and tells
// what they did: what is open, openname (more: path, flags, mode), getppid, read, write,
// close or tcp; or value (more: lseek or write), which makes one call that gives back n.
func (g *Guest) Hit(what string, n, cpu int, more ...string) Counts {
	g.tb.Helper()
	argv := append([]string{"/bin/hit", what, strconv.Itoa(n), strconv.Itoa(cpu)}, more...)
	r, err := g.Run(argv...)
	if err != nil || r.Status != 0 {
		g.tb.Fatalf("guest: %q: status %d, %v: %s", argv, r.Status, err, r.Stderr)
	}
	var c Counts
	if err := json.Unmarshal([]byte(r.Stdout), &c); err != nil {
		g.tb.Fatalf("guest: %q printed %q: %v", argv, r.Stdout, err)
	}
	return c
}

// Background starts a command and returns what kills it, and its children.
func (g *Guest) Background(argv ...string) (end func()) {
	g.tb.Helper()
	a, _ := g.ask(&serial.Request{Op: "spawn", Args: argv}, nil)
	if err := guestkit.Failed(&a); err != nil {
		g.tb.Fatalf("guest: %q: %v", argv, err)
	}
	return func() {
		g.tb.Helper()
		e, _ := g.ask(&serial.Request{Op: "end", ID: a.ID}, nil)
		if err := guestkit.Failed(&e); err != nil {
			g.tb.Errorf("guest: end of %q: %v", argv, err)
		}
	}
}

// Reboot reboots the guest and returns when its agent answers again.
func (g *Guest) Reboot() {
	g.tb.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.line.Send(&serial.Request{Op: "reboot"}, nil)
	if err == nil {
		err = g.line.Ready()
	}
	if err != nil {
		g.tb.Fatalf("guest: reboot: %v; its console ends:\n%s", err, tail(g.Log()))
	}
}

// Log is what the guest's kernel has written to its serial console.
func (g *Guest) Log() string {
	b, err := os.ReadFile(g.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Trouble gives the lines of the console that tell of a kernel in trouble.
func (g *Guest) Trouble() []string {
	var bad []string
	for line := range strings.Lines(g.Log()) {
		for _, word := range []string{"BUG:", "Oops:", "WARNING:", "Kernel panic", "general protection fault", "Call Trace:", "soft lockup", "rcu_sched"} {
			if strings.Contains(line, word) {
				bad = append(bad, strings.TrimSpace(line))
				break
			}
		}
	}
	return bad
}
