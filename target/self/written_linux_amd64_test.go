package self_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/procfs"
)

func init() { children["written"], children["putback"] = writtenInto, putBack }

// TestPutBack: somebody writes the program's own bytes over patches, of all probes of a function and of one that is
// then replaced: they are armed anew without a call of the program's.
func TestPutBack(t *testing.T) { child(t, "putback") }

func putBack(c *kprobes.Core) error {
	counts, err := addCounts(c, "p "+own+"other", "r "+own+"bump")
	if err != nil {
		return err
	}
	k := &kprobes.Kprobe{SymbolName: own + "bump", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	for i := range uint64(3) {
		for _, at := range []uint64{counts[0].Place().Addr, k.Addr} {
			if err := putBackAt(at); err != nil {
				return err
			}
		}
		if other(1, 2) != 5 || bump(1, 2) != 7 {
			return errors.New("wrong results")
		}
		if a, b, s := c.Counts(counts[0]), c.Counts(counts[1]), k.State(); a.Hits != i+1 || b.Hits != i+1 || s.Hits != i+1 {
			return fmt.Errorf("after %d calls: %+v, %+v, %+v", i+1, a, b, s)
		}
	}
	return errors.Join(c.Sync(), c.Close(nil), codeIsFiles())
}

// putBackAt writes the program's own bytes over the patch at an address, and waits until a patch stands there again.
func putBackAt(addr uint64) error {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	orig, err := fileCode(addr, 5)
	if err != nil {
		return err
	}
	have := make([]byte, len(orig))
	if _, err := mem.ReadAt(have, int64(addr)); err != nil || bytes.Equal(have, orig) {
		return fmt.Errorf("% x stands there: no patch, %w", have, err)
	}
	if _, err := mem.WriteAt(orig, int64(addr)); err != nil {
		return err
	}
	copy(have, orig)
	for end := time.Now().Add(childWait); bytes.Equal(have, orig); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("nobody has armed it anew")
		}
		if _, err := mem.ReadAt(have, int64(addr)); err != nil {
			return err
		}
	}
	return nil
}

// TestWrittenInto: a breakpoint that somebody else writes into a patch is seen without a call of the program's,
// for probes and for events that only count: the probe is taken out around it, says so, and the others go on.
func TestWrittenInto(t *testing.T) { child(t, "written") }

func writtenInto(c *kprobes.Core) error {
	k := &kprobes.Kprobe{SymbolName: own + "bump"}
	counts, err := addCounts(c, "p "+own+"other")
	if err != nil {
		return err
	}
	ev := counts[0]
	_ = other(1, 2)
	if err := breakInto(ev.Place().Addr, func() error {
		_, why := ev.Form()
		return why
	}); err != nil {
		return fmt.Errorf("an event: %w", err)
	}
	if other(1, 2) != 5 || c.Counts(ev).Hits != 1 {
		return fmt.Errorf("the event counts %+v", c.Counts(ev))
	}
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	_ = bump(1, 2)
	if err := breakInto(k.Addr, func() error { return k.State().Why }); err != nil {
		return fmt.Errorf("a probe: %w", err)
	}
	var list strings.Builder
	if err := c.List(&list); err != nil {
		return err
	}
	if s := k.State(); bump(1, 2) != 7 || s.Hits != 1 || s.Tactic != "" || s.Optimized || strings.Count(list.String(), "taken out: a breakpoint that is not ours") != 2 {
		return fmt.Errorf("%+v\n%s", s, &list)
	}
	c.UnregisterKprobe(k)
	k = &kprobes.Kprobe{SymbolName: own + "bump"} // the breakpoint has gone
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	_ = bump(1, 2)
	if n := k.State().Hits; n != 1 {
		return fmt.Errorf("registered anew: %d hits", n)
	}
	if err := c.Sync(); err == nil || strings.Count(err.Error(), "taken out") != 2 {
		return fmt.Errorf("the next Sync says: %w", err)
	}
	return errors.Join(c.Close(nil), codeIsFiles())
}

// breakInto writes a breakpoint into the patch at an address, waits until a reason is told, looks at what stands
// there then, and takes the breakpoint out again.
func breakInto(addr uint64, why func() error) error {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	want, err := fileCode(addr, 5)
	if err != nil {
		return err
	}
	was := want[1]
	if want[1] = 0xcc; was == 0xcc {
		return errors.New("the function's second byte is int3")
	}
	if _, err := mem.WriteAt(want[1:2], int64(addr)+1); err != nil {
		return err
	}
	for end := time.Now().Add(childWait); why() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("nobody has seen it")
		}
	}
	if err := why(); !errors.Is(err, unix.EBUSY) {
		return err
	}
	have := make([]byte, len(want))
	if _, err := mem.ReadAt(have, int64(addr)); err != nil || !bytes.Equal(have, want) {
		return fmt.Errorf("% x stands there, %w, want % x", have, err, want)
	}
	_, err = mem.WriteAt([]byte{was}, int64(addr)+1)
	return err
}

// fileCode reads n bytes of the program's code from its file.
func fileCode(addr uint64, n int) ([]byte, error) {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	maps, err := procfs.ParseMaps(b)
	if err != nil {
		return nil, err
	}
	m, ok := procfs.FindMap(maps, addr)
	if !ok {
		return nil, fmt.Errorf("nothing is mapped at 0x%x", addr)
	}
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	code := make([]byte, n)
	_, err = f.ReadAt(code, int64(addr-m.Start+m.Offset))
	return code, err
}
