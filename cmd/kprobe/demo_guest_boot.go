package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/guestkit/agent"
	"kprobes.dev/kprobes/internal/guestkit/serial"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// demoHitVerb is the verb by which the demo's test program starts in the guest.
const demoHitVerb = "__hit"

func newDemoHit() *cobra.Command {
	return &cobra.Command{
		Use:                demoHitVerb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return agent.Hit(args, os.Stdout) },
	}
}

// demoGuest is the guest of the demo: its /init is this program, with the agent.
type demoGuest struct {
	spec qemu.Spec
	line *guestkit.Line
	wake *guestkit.Watchdog
	dir  string
}

// demoKernel finds the kernel to boot: the one given, or Debian's.
func demoKernel(given string) (string, error) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return "", fmt.Errorf("demo --guest boots a kernel in QEMU, and qemu-system-x86_64 is not in PATH: install it (Debian: apt-get install qemu-system-x86): %w", err)
	}
	if given != "" {
		return given, nil
	}
	if !guestkit.HasKernel() {
		fmt.Fprintln(os.Stderr, "kprobe: fetching Debian's linux-image-cloud-amd64 into the user's cache (apt-get download, some 30 MB)")
	}
	k, err := guestkit.Kernel()
	if err != nil {
		return "", fmt.Errorf("%w; or give a kernel: kprobe demo --guest --kernel FILE, a bzImage", err)
	}
	return k, nil
}

const demoCPUs = 2

// bootDemo starts the guest. ctx ends an exchange with its agent that waits.
func bootDemo(ctx context.Context, kernel string) (_ *demoGuest, err error) {
	g := new(demoGuest)
	if g.dir, err = os.MkdirTemp("", "kprobe-demo-"); err != nil {
		return nil, err
	}
	if err = g.start(kernel); err == nil {
		g.line, err = guestkit.Dial(g.dir, guestDemoLimit)
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	context.AfterFunc(ctx, func() { g.line.Close() })
	return g, nil
}

func (g *demoGuest) start(kernel string) error {
	initrd := filepath.Join(g.dir, "initrd")
	if err := writeDemoInitrd(initrd); err != nil {
		return err
	}
	spec, err := qemu.Start(&qemu.StartOptions{
		Kernel: kernel, Initrd: initrd, Append: "console=ttyS0 loglevel=5 panic=-1",
		CPUs: demoCPUs, OneThread: true, Dir: g.dir, Extra: append(guestkit.Serial(g.dir), "-no-reboot"),
	})
	if err != nil {
		return fmt.Errorf("kernel %s: %w", kernel, err)
	}
	g.spec = spec
	g.wake, err = guestkit.StartWatchdog(spec)
	return err
}

// writeDemoInitrd writes an initial RAM disk with this program alone: as /init it is the agent,
// as /bin/hit the test program.
func writeDemoInitrd(name string) error {
	files, err := guestkit.Self()
	if err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	files = append(files, guestkit.File{Name: "bin/hit", Mode: guestkit.Link, Data: []byte("/init")})
	return errors.Join(guestkit.WriteArchive(f, files), f.Close())
}

// ready waits until the guest's agent speaks.
func (g *demoGuest) ready() error {
	if err := g.line.Ready(); err != nil {
		return fmt.Errorf("the guest does not come up: %w; its console ends:\n%s", err, g.console())
	}
	return nil
}

// console is the end of what the guest's kernel has written.
func (g *demoGuest) console() string {
	b, err := os.ReadFile(filepath.Join(g.dir, "serial.log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// ask asks the agent for something, which must work.
func (g *demoGuest) ask(req *serial.Request, body []byte) (serial.Answer, []byte, error) {
	a, out, err := g.line.Ask(req, body)
	if err != nil {
		return a, nil, fmt.Errorf("the guest's agent: %w; its console ends:\n%s", err, g.console())
	}
	return a, out, guestkit.Failed(&a)
}

func (g *demoGuest) read(path string) (string, error) {
	_, out, err := g.ask(&serial.Request{Op: "read", Path: path}, nil)
	return string(out), err
}

// write writes text by one write(2), behind what is there or instead of it.
func (g *demoGuest) write(path, text string, flag int) error {
	_, _, err := g.ask(&serial.Request{Op: "write", Path: path, Flags: unix.O_WRONLY | flag}, []byte(text))
	return err
}

// hit runs the test program: see agent.Hit.
func (g *demoGuest) hit(what string, n, cpu int, more ...string) (agent.Counts, error) {
	var c agent.Counts
	args := append([]string{"/bin/hit", demoHitVerb, what, strconv.Itoa(n), strconv.Itoa(cpu)}, more...)
	a, out, err := g.ask(&serial.Request{Op: "run", Args: args}, nil)
	if err == nil && a.Status != 0 {
		err = fmt.Errorf("the test program in the guest, %q: status %d: %s", args, a.Status, strings.TrimSpace(string(a.Stderr)))
	}
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(out, &c); err != nil {
		return c, fmt.Errorf("the test program in the guest, %q, printed %q: %w", args, out, err)
	}
	return c, nil
}

// segments is how many TCP segments the guest's kernel has received by its own count.
func (g *demoGuest) segments() (uint64, error) {
	text, err := g.read("/proc/net/snmp")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := range min(len(f), len(names)) {
			if names[i] == "InSegs" {
				return strconv.ParseUint(f[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("the guest's /proc/net/snmp has no InSegs: %q", text)
}

// close ends the guest, and removes all its files. To do so again does nothing.
func (g *demoGuest) close() error {
	if g.dir == "" {
		return nil
	}
	var err error
	if g.line != nil {
		err = g.line.Close()
	}
	if g.spec.Dir != "" {
		err = errors.Join(err, qemu.End(g.spec))
	}
	if g.wake != nil && err == nil {
		err = g.wake.Dismiss()
	}
	err = errors.Join(err, os.RemoveAll(g.dir))
	g.dir = ""
	return err
}

// guestDemoLimit is for all the steps, boot included: it takes ten seconds on a machine that
// does nothing else.
const guestDemoLimit = 2 * time.Minute

// guestDemo is one run of demo --guest.
type guestDemo struct {
	steps
	ctx    context.Context
	kernel string
	g      *demoGuest
	t      *tracedGuest // nil before arm and after detach
	text   []byte       // the kernel's, before anything was put in
	ours   []byte       // our lines
	print  hit.Printer
	runs   []demoRun
}

// Files of the guest's own tracer.
const (
	guestTracing = "/sys/kernel/tracing/"
	guestEnable  = guestTracing + "events/kprobes/enable"
	guestEvents  = guestTracing + "kprobe_events"
	guestList    = "/sys/kernel/debug/kprobes/list"
)

// demoRun is a run of the test program.
type demoRun struct {
	agent.Counts
	events   []string
	segments uint64 // tcp: what the guest's network has received meanwhile
}

// demoWork is what the test program in the guest does: see agent.Hit. tcp's calls go through
// the network's interrupts, so that not all hits are of its thread.
var demoWork = []struct {
	what   string
	n, cpu int
	more   []string
	events []string
}{
	{"open", 500, 0, []string{"/no/such/file", "0", "0"}, []string{"myprobe", "myretprobe"}},
	{"open", 500, 1, []string{"/tmp/note", "0x241", "0644"}, []string{"myprobe", "myretprobe"}},
	{"read", 500, 0, nil, []string{"myread"}},
	{"tcp", 200, 1, nil, []string{"myreceive"}},
}
