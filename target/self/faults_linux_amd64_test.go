package self_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

func init() {
	children["faults"] = faults
	children["badptr"] = badPointers
}

// The functions that fault do so in the instructions that a jump replaces.
//
//go:noinline
func faultLoad(p *[4]uint32, i uint32) uint32 { return p[1] + i }

//go:noinline
func faultStore(p *[4]uint64, v uint64) { p[2] = v }

//go:noinline
func faultByte(p *byte, v uint32) uint32 { return uint32(*p) + v }

//go:noinline
func faultDiv(a, b int) int { return a / b }

// TestFaults: a fault in an instruction that was displaced is the panic that it is without
// probes, with the same traceback.
func TestFaults(t *testing.T) { t.Log(child(t, "faults", "KPROBES_FAULTS="+t.TempDir())) }

func faults(c *kprobes.Core) error {
	gone, err := truncated(filepath.Join(os.Getenv("KPROBES_FAULTS"), "file"))
	if err != nil {
		return err
	}
	debug.SetPanicOnFault(true)
	cases := []struct {
		fn string
		f  func()
	}{
		{"faultLoad", func() { faultLoad(nil, 1) }},
		{"faultStore", func() { faultStore(nil, 1) }},
		{"faultByte", func() { faultByte(gone, 1) }},
		{"faultDiv", func() { _ = faultDiv(1, len(os.Args)-1) }},
	}
	var plain []string
	for _, x := range cases {
		plain = append(plain, panics(x.f))
		if !strings.Contains(plain[len(plain)-1], own+x.fn+" ") {
			return fmt.Errorf("%s panics with %s", x.fn, plain[len(plain)-1])
		}
	}
	var ks []*kprobes.Kprobe
	for _, x := range cases {
		ks = append(ks, &kprobes.Kprobe{SymbolName: own + x.fn})
	}
	if err := c.RegisterKprobes(ks); err != nil {
		return err
	}
	for i, x := range cases {
		for range 100 {
			if got := panics(x.f); got != plain[i] {
				return fmt.Errorf("%s: %s\nwithout the probe: %s", x.fn, got, plain[i])
			}
		}
		if s := ks[i].State(); s.Hits != 100 || !s.Optimized {
			return fmt.Errorf("%s: %+v", x.fn, s)
		}
	}
	fmt.Println(strings.Join(plain, "\n"))
	c.UnregisterKprobes(ks)
	return nil
}

// panics describes the panic of f: the error, the address of the fault, and the calls.
func panics(f func()) (what string) {
	defer func() {
		v := recover()
		err, ok := v.(runtime.Error)
		if !ok {
			what = fmt.Sprintf("%v, which is no runtime.Error", v)
			return
		}
		what = reflect.TypeOf(v).String() + ": " + err.Error()
		var pcs [32]uintptr
		frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
		for more := true; more; {
			var fr runtime.Frame
			fr, more = frames.Next()
			what += fmt.Sprintf("; %s line %d", fr.Function, fr.Line)
			if strings.HasSuffix(fr.Function, ".panics") {
				break
			}
		}
	}()
	f()
	return "nothing"
}

// truncated maps a file that has then no page any more: an access is a SIGBUS.
func truncated(path string) (*byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &b[0], f.Truncate(0)
}

//go:noinline
func takesPointer(p, q uint64) uint64 { return p*3 + q }

// TestBadPointers: arguments that can not be read are 0, or a fault, and harm nobody.
func TestBadPointers(t *testing.T) { child(t, "badptr") }

func badPointers(c *kprobes.Core) error {
	d, err := event.Parse("p:bad " + own + "takesPointer num=+0($arg1):u64 far=+8(+0($arg1)):u32 text=+0($arg1):string str=+0($arg1):ustring q=$arg2")
	if err != nil {
		return err
	}
	es, err := c.Add([]*event.Def{d}, nil)
	if err != nil {
		return err
	}
	noAccess, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	bad := []uint64{0, 1, 4096, 1 << 46, 1 << 63, ^uint64(0), ^uint64(7), uint64(uintptr(unsafe.Pointer(&noAccess[0])))}
	for i, p := range bad {
		if got := takesPointer(p, uint64(i)); got != 3*p+uint64(i) {
			return fmt.Errorf("takesPointer(0x%x, %d) = %d", p, i, got)
		}
	}
	err = c.Remove(es)
	var texts []string
	for end := time.Now().Add(time.Minute); len(texts) < len(bad) && time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.Poll(func(h *hit.Hit) {
			vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
			texts = append(texts, fmt.Sprint(string(fetch.AppendValues(nil, vs, nil)), err))
		})
	}
	for i, text := range texts {
		if want := fmt.Sprintf(` num=0 far=0 text=(fault) str=(fault) q=0x%x<nil>`, i); text != want {
			err = errors.Join(err, fmt.Errorf("at 0x%x:%s, want%s", bad[i], text, want))
		}
	}
	if len(texts) != len(bad) {
		err = errors.Join(err, fmt.Errorf("%d records of %d calls", len(texts), len(bad)))
	}
	return err
}
