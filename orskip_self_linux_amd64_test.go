//go:build !race

// Atomic handlers are not to be had under the race detector.

package kprobes_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

// TestSelfOrSkip registers batches of which some can not be: these are told with the reason and are as
// they were, the others count.
func TestSelfOrSkip(t *testing.T) {
	const pkg = "kprobes.dev/kprobes_test."
	var runs int
	pre := func(*kprobes.Kprobe, *kprobes.Regs) int { runs++; return 0 }
	registered := &kprobes.Kprobe{SymbolName: pkg + "readAt", PreHandler: pre}
	if err := kprobes.RegisterKprobe(registered); err != nil {
		t.Fatal(err)
	}
	ks := []*kprobes.Kprobe{
		{SymbolName: pkg + "nothing"},
		{SymbolName: pkg + "faulty", PreHandler: pre},
		{},
		{SymbolName: "runtime.systemstack_switch"},
		registered,
		{SymbolName: pkg + "faulty", Offset: 1, PreHandler: pre}, // inside an instruction
		{SymbolName: pkg + "readThere", PreHandler: pre},
	}
	want := map[int]error{0: unix.ENOENT, 2: unix.EINVAL, 3: unix.EINVAL, 4: unix.EINVAL, 5: unix.EILSEQ}
	got := map[int]error{}
	err := kprobes.RegisterKprobesOrSkip(ks, func(k *kprobes.Kprobe, why error) {
		for i := range ks {
			if ks[i] == k {
				got[i] = why
			}
		}
		_ = k.State() // no lock is held
	})
	if err != nil || len(got) != len(want) {
		t.Fatalf("%v, left out: %v", err, got)
	}
	for i, no := range want {
		if !errors.Is(got[i], no) || i != 4 && (ks[i].Addr != 0 || ks[i].State().Registered) {
			t.Errorf("probe %d: %v, want %v; %+v", i, got[i], no, ks[i].State())
		}
	}
	kprobes.UnregisterKprobe(registered)
	for i := range 10 {
		if faulty(i) != i+1 || readThere(&i) != i+1 {
			t.Error("the probed functions compute something else")
		}
	}
	for _, i := range []int{1, 6} {
		if s := ks[i].State(); s.Hits != 10 || !s.Registered {
			t.Errorf("probe %d: %+v", i, s)
		}
	}
	if runs != 20 {
		t.Errorf("%d runs of the handlers", runs)
	}
	kprobes.UnregisterKprobes(ks)
	// What was left out can be registered by itself once it can be.
	ks[0].SymbolName = pkg + "faulty"
	if err := kprobes.RegisterKprobe(ks[0]); err != nil {
		t.Error(err)
	}
	kprobes.UnregisterKprobe(ks[0])

	n := 0
	rs := []*kprobes.Kretprobe{{Kp: kprobes.Kprobe{SymbolName: pkg + "nothing"}}, {Kp: kprobes.Kprobe{SymbolName: pkg + "faulty", Offset: 5}}}
	err = kprobes.RegisterKretprobesOrSkip(rs, func(_ *kprobes.Kretprobe, why error) { n++; t.Log(why) })
	if !errors.Is(err, kprobes.ErrRegister) || n != 2 {
		t.Errorf("none can be registered: %v, %d were left out", err, n)
	}
}
