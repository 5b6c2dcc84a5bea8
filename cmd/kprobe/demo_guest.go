package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/guest"
)

// guestProbes are the examples of Documentation/trace/kprobetrace.rst, with the registers and types of x86-64. Each goes to
// our engine and to the guest's own kprobe_events.
var guestProbes = []string{
	"p:myprobe do_sys_openat2 dfd=%di:s32 filename=+0(%si):ustring flags=+0(%dx):x64 mode=+8(%dx):x64",
	"r:myretprobe do_sys_openat2 $retval:s32",
	"p:myread vfs_read count=%dx:u64",
	"p:myreceive tcp_v4_rcv skb=%di:x64",
}

// runGuestDemo is the verb. Whatever happens, everything is taken out and the guest ended.
func runGuestDemo(ctx context.Context, w io.Writer, kernel string) error {
	limited, cancel := context.WithTimeout(ctx, guestDemoLimit)
	defer cancel()
	d := &guestDemo{ctx: limited, steps: steps{out: w}, kernel: kernel}
	err := d.run()
	err = errors.Join(err, d.leave())
	if d.g != nil {
		err = errors.Join(err, d.g.close())
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "kprobe: interrupted: the guest is ended")
		return nil
	case limited.Err() != nil:
		return fmt.Errorf("demo took longer than %v on this machine: %w", guestDemoLimit, err)
	}
	return err
}

func (d *guestDemo) run() error {
	for _, step := range []func() error{d.boot, d.arm, d.calls, d.compare, d.list, d.detach, d.end} {
		if err := step(); err != nil {
			return err
		}
		if err := d.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// leave takes our probes out of the kernel. To do so again does nothing.
func (d *guestDemo) leave() error {
	if d.t == nil {
		return nil
	}
	t := d.t
	d.t = nil
	return errors.Join(t.Leave(nil), t.Close())
}

// boot starts the guest and finds its kernel.
func (d *guestDemo) boot() error {
	kernel, err := demoKernel(d.kernel)
	if err != nil {
		return err
	}
	d.step("A Linux kernel, %s, boots in QEMU with %d CPUs. It is not changed and knows nothing of us.", filepath.Base(kernel), demoCPUs)
	began := time.Now()
	if d.g, err = bootDemo(d.ctx, kernel); err != nil {
		return err
	}
	if err := d.g.ready(); err != nil {
		return err
	}
	up := time.Since(began)
	if err := d.warm(); err != nil {
		return err
	}
	began = time.Now()
	if d.t, err = openGuest(d.g.spec); err != nil {
		return err
	}
	k := d.t.t.Kernel()
	va, pa := k.Base()
	fmt.Fprintf(d.out, "   It is up after %.1f s. Its memory alone tells that it is Linux %s at 0x%x\n   (physical 0x%x), and its %d symbols: found in %.1f s.\n",
		up.Seconds(), k.Release(), va, pa, len(k.Symbols()), time.Since(began).Seconds())
	d.text, err = guestText(d.t.t)
	return err
}

// warm makes a few calls of each kind, so that the kernel changes no more of its own code when
// the first of them is made.
func (d *guestDemo) warm() error {
	for _, w := range demoWork {
		if _, err := d.g.hit(w.what, 3, w.cpu, w.more...); err != nil {
			return err
		}
	}
	return nil
}

// arm gives the definitions to our engine and to the guest's own kprobe_events.
func (d *guestDemo) arm() error {
	d.step("The examples of Linux's documentation go into the kernel while it runs, from outside by a write to its memory; and the\n   same lines are written to its own kprobe_events.")
	var defs []*event.Def
	for _, p := range guestProbes {
		def, err := event.Parse(p)
		if err != nil {
			return err
		}
		defs = append(defs, def)
		fmt.Fprintf(d.out, "     %s\n", p)
		if err := d.g.write(guestEvents, p+"\n", unix.O_APPEND); err != nil {
			return fmt.Errorf("%w: the kernel that is shown needs CONFIG_KPROBE_EVENTS", err)
		}
	}
	d.print = hit.Printer{Names: d.t.Names()}
	if err := d.t.Add(defs, nil); err != nil {
		return err
	}
	return d.g.write(guestEnable, "1", unix.O_TRUNC)
}

// list shows the probes as the guest's memory has them, beside what the guest says itself.
func (d *guestDemo) list() error {
	d.step("The listing, as in kprobes/list, from the guest's memory alone; [OPTIMIZED] says that a hit takes a jump, not a trap.")
	m, t, err := attachGuest(d.g.spec.String(), toRead)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := writeGuestList(d.out, t, &guestNames{t: t}); err != nil {
		return err
	}
	own, err := d.g.read(guestList)
	if errors.Is(err, unix.ENOENT) {
		return nil // no debugfs
	}
	_, perr := fmt.Fprintf(d.out, "   and of the guest's own:\n%s", own)
	return errors.Join(err, perr)
}

// detach takes everything out, and looks at the kernel anew.
func (d *guestDemo) detach() error {
	d.step("The summary; then everything is taken out again, of the guest's own tracer too.")
	for _, s := range d.t.Totals() {
		s.print(d.out)
	}
	if err := d.leave(); err != nil {
		return err
	}
	if err := d.g.write(guestEnable, "0", unix.O_TRUNC); err != nil {
		return err
	}
	if err := d.g.write(guestEvents, "", unix.O_TRUNC); err != nil {
		return err
	}
	m, t, err := attachGuest(d.g.spec.String(), toRead)
	if err != nil {
		return err
	}
	defer m.Close()
	l, err := t.FindLeftover()
	if err != nil {
		return err
	}
	if l != nil {
		return fmt.Errorf("the guest's kernel still holds %d sites of ours", len(l.Sites))
	}
	text, err := guestText(t)
	if err != nil {
		return err
	}
	if n := differing(d.text, text); n > 0 {
		return fmt.Errorf("%d bytes of the kernel's code are not those from before", n)
	}
	_, err = fmt.Fprintf(d.out, "   %d bytes of the kernel's code are those from before, the listing is empty\n", len(text))
	return err
}

// guestText reads a kernel's code.
func guestText(t *guest.Target) ([]byte, error) {
	var all []byte
	for _, r := range t.Kernel().Text() {
		b := make([]byte, r.End-r.Start)
		if err := t.Read(r.Start, b); err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// differing is the number of bytes in which two slices differ.
func differing(a, b []byte) int {
	n := max(len(a), len(b)) - min(len(a), len(b))
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// end makes sure that the kernel still works and has nothing to complain of, and ends it.
func (d *guestDemo) end() error {
	c, err := d.g.hit("read", 1000, 0)
	if err != nil {
		return err
	}
	if c.OK != 1000 {
		return fmt.Errorf("after all was taken out %d of 1000 reads work in the guest", c.OK)
	}
	for line := range strings.Lines(d.g.console()) {
		for _, bad := range []string{"BUG:", "Oops:", "WARNING:", "Call Trace:"} {
			if strings.Contains(line, bad) {
				return fmt.Errorf("the guest's console: %s", strings.TrimSpace(line))
			}
		}
	}
	d.step("The guest goes on: 1000 more calls work, and its console has no complaint. It is ended.")
	return d.g.close()
}
