package kprobes

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// untouched is a target that nothing may be asked of: every method that is called panics.
type untouched struct{ target.Target }

// Space and Capabilities are what Open asks for.
func (untouched) Space() *symbol.Space              { return nil }
func (untouched) Capabilities() target.Capabilities { return target.Capabilities{} }

// TestBadArguments: what is wrong with a probe by itself is told before the target is asked
// for anything, and the probe is left as it was.
func TestBadArguments(t *testing.T) {
	c, err := Open(untouched{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pre := func(*Kprobe, *Regs) int { return 0 }
	post := func(*Kprobe, *Regs, uint64) {}
	at := Kprobe{SymbolName: "f"}
	twice := &Kprobe{SymbolName: "f"}
	for name, try := range map[string]struct {
		err  error
		want unix.Errno
		says string
	}{
		"no probe":             {c.RegisterKprobe(nil), unix.EINVAL, "nil"},
		"no kretprobe":         {c.RegisterKretprobe(nil), unix.EINVAL, "nil"},
		"no jprobe":            {c.RegisterJprobe(nil), unix.EINVAL, "nil"},
		"no probes":            {c.RegisterKprobes(nil), unix.EINVAL, "no probes"},
		"no kretprobes":        {c.RegisterKretprobes(nil), unix.EINVAL, "no probes"},
		"no jprobes":           {c.RegisterJprobes(nil), unix.EINVAL, "no probes"},
		"no place":             {c.RegisterKprobe(&Kprobe{}), unix.EINVAL, "neither"},
		"two places":           {c.RegisterKprobe(&Kprobe{SymbolName: "f", Addr: 1}), unix.EINVAL, "both"},
		"kretprobe, no place":  {c.RegisterKretprobe(&Kretprobe{}), unix.EINVAL, "neither"},
		"jprobe, two places":   {c.RegisterJprobe(&Jprobe{Kp: Kprobe{SymbolName: "f", Addr: 1}, Entry: func() {}}), unix.EINVAL, "both"},
		"second of a batch":    {c.RegisterKprobes([]*Kprobe{{SymbolName: "f"}, {}}), unix.EINVAL, "probe 2 of 2"},
		"twice in a batch":     {c.RegisterKprobes([]*Kprobe{twice, twice}), unix.EINVAL, "registered already"},
		"too many instances":   {c.RegisterKretprobe(&Kretprobe{Kp: at, MaxActive: 4097}), unix.E2BIG, "4096"},
		"too much data":        {c.RegisterKretprobe(&Kretprobe{Kp: at, DataSize: 4097}), unix.E2BIG, "4096"},
		"negative data":        {c.RegisterKretprobe(&Kretprobe{Kp: at, DataSize: -1}), unix.EINVAL, "negative"},
		"kretprobe with pre":   {c.RegisterKretprobe(&Kretprobe{Kp: Kprobe{SymbolName: "f", PreHandler: pre}}), unix.EINVAL, "never run"},
		"jprobe with post":     {c.RegisterJprobe(&Jprobe{Kp: Kprobe{SymbolName: "f", PostHandler: post}, Entry: func() {}}), unix.EINVAL, "never run"},
		"jprobe without entry": {c.RegisterJprobe(&Jprobe{Kp: at}), unix.EINVAL, "Entry is nil"},
		"jprobe with a number": {c.RegisterJprobe(&Jprobe{Kp: at, Entry: 3}), unix.EINVAL, "type int"},
		"jprobe with nil func": {c.RegisterJprobe(&Jprobe{Kp: at, Entry: (func())(nil)}), unix.EINVAL, "nil func"},
		"enable":               {c.EnableKprobe(&Kprobe{SymbolName: "f"}), unix.EINVAL, "not registered"},
		"disable":              {c.DisableKprobe(&Kprobe{SymbolName: "f"}), unix.EINVAL, "not registered"},
		"enable kretprobe":     {c.EnableKretprobe(&Kretprobe{}), unix.EINVAL, "not registered"},
		"disable kretprobe":    {c.DisableKretprobe(nil), unix.EINVAL, "nil"},
		"enable jprobe":        {c.EnableJprobe(&Jprobe{}), unix.EINVAL, "not registered"},
		"disable jprobe":       {c.DisableJprobe(nil), unix.EINVAL, "nil"},
		"no kprobe here":       {c.NoKprobe(7), unix.EINVAL, "type int"},
		"no kprobe at nil":     {c.NoKprobe((func())(nil)), unix.EINVAL, "nil func"},
		"no kprobe in method":  {c.NoKprobe((&bytes.Buffer{}).Len), unix.EINVAL, "method expression"},
	} {
		if !errors.Is(try.err, try.want) || !strings.Contains(try.err.Error(), try.says) {
			t.Errorf("%s: %v, want %v and %q", name, try.err, try.want, try.says)
		}
	}
	if twice.Addr != 0 || twice.load() != nil {
		t.Errorf("a probe that was refused is %+v", twice)
	}
}

// TestUnregisterUnregistered: of probes that are not registered the address is cleared and
// nothing else happens, whatever stands among them.
func TestUnregisterUnregistered(t *testing.T) {
	c, _ := Open(untouched{}, nil)
	a, b := &Kprobe{Addr: 1, Offset: 2}, &Kprobe{SymbolName: "f", Addr: 2}
	c.UnregisterKprobes([]*Kprobe{a, nil, b, a})
	r, j := &Kretprobe{Kp: Kprobe{Addr: 3}, MaxActive: 4}, &Jprobe{Kp: Kprobe{Addr: 5}}
	c.UnregisterKretprobes([]*Kretprobe{r, nil})
	c.UnregisterJprobes([]*Jprobe{nil, j})
	if a.Addr != 0 || a.Offset != 2 || b.Addr != 0 || b.SymbolName != "f" || r.Kp.Addr != 0 || r.MaxActive != 4 || j.Kp.Addr != 0 {
		t.Errorf("after unregistering what is not registered: %+v %+v %+v %+v", a, b, r, j)
	}
	if a.NMissed() != 0 || r.NMissed() != 0 || r.Unwound() != 0 || j.NMissed() != 0 || a.Fault() != nil || a.State() != (State{}) {
		t.Error("a probe that was never registered has counted something")
	}
}

// inside is a target that is asked from within a handler, or not.
type inside struct {
	untouched
	handler *bool
}

func (t inside) Capabilities() target.Capabilities {
	return target.Capabilities{InHandler: func() bool { return *t.handler }}
}

// TestFromHandler: a handler gets an error, or nothing done, and waits for no lock.
func TestFromHandler(t *testing.T) {
	var handler bool
	c, _ := Open(inside{handler: &handler}, nil)
	c.e.Unregister(func(func(*engine.Probe)) { // the lock is held here
		handler = true
		k := &Kprobe{Addr: 8}
		for name, err := range map[string]error{
			"register": c.RegisterKprobe(k), "enable": c.EnableKprobe(k), "disable": c.DisableKprobe(k),
			"kretprobe": c.RegisterKretprobe(&Kretprobe{}), "jprobe": c.RegisterJprobe(&Jprobe{}),
			"enabled": c.SetEnabled(false), "optimization": c.SetOptimization(false), "blacklist": c.NoKprobe(t.Log),
		} {
			if !errors.Is(err, unix.EDEADLK) {
				t.Errorf("%s: %v, want EDEADLK", name, err)
			}
		}
		c.UnregisterKprobe(k)
		if k.Addr != 8 {
			t.Error("a handler has unregistered a probe")
		}
	})
}

// TestInstanceIsCall: the engine's Call and a KretprobeInstance are the same memory, so each field of the one lies
// where its counterpart does.
func TestInstanceIsCall(t *testing.T) {
	call, instance := reflect.TypeFor[engine.Call](), reflect.TypeFor[KretprobeInstance]()
	names := map[string]string{"RetAddr": "RetAddr", "Owner": "Rp", "Task": "Task", "Data": "Data", "Tail": "Tail"}
	if call.NumField() != len(names) || instance.NumField() != len(names) {
		t.Fatalf("%d and %d fields, want %d", call.NumField(), instance.NumField(), len(names))
	}
	for a, b := range names {
		f, _ := call.FieldByName(a)
		g, ok := instance.FieldByName(b)
		if !ok || f.Offset != g.Offset || f.Type.Size() != g.Type.Size() {
			t.Errorf("%s is at %d with %d bytes, %s at %d with %d", a, f.Offset, f.Type.Size(), b, g.Offset, g.Type.Size())
		}
	}
}
