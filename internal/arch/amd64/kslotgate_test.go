package amd64

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// kernelSlots is an environment of gates in a kernel; its code runs in a guest's (target/guest).
func kernelSlots() KernelSlotEnv {
	return KernelSlotEnv{Keys: 0xffffffffc0000000, Slots: 0xffffffffc0001000, CPUs: 4, Kernel: &arch.Kernel{CPU: 0x100, Current: 0x108, Preempt: 0x110, UserEnd: 1 << 47}}
}

// TestKernelSlotGate: gates are made where their displacements reach, and refused elsewhere.
func TestKernelSlotGate(t *testing.T) {
	const at = 0xffffffffc0800000
	for kind := range SlotKinds {
		g, err := NewKernelSlotGate(at, kind, kernelSlots())
		if err != nil {
			t.Fatal(err)
		}
		if off := g.Abandon - at; off >= uint64(len(g.Code)) || !bytes.HasPrefix(g.Code[off:], endbr64) {
			t.Errorf("kind %d: the way out of a handler is at %#x of %d bytes", kind, off, len(g.Code))
		}
		if faults := len(g.Faults); (kind == SlotJump) != (faults == 1) {
			t.Errorf("kind %d: %d places that may fault", kind, faults)
		}
	}
	for _, change := range []func(*KernelSlotEnv){
		func(e *KernelSlotEnv) { e.Keys = 0x7fff00000000 },
		func(e *KernelSlotEnv) { e.Slots = 0xffff888000000000 },
	} {
		env := kernelSlots()
		change(&env)
		if _, err := NewKernelSlotGate(at, SlotPre, env); err == nil || !strings.Contains(err.Error(), "upper 2 GB") {
			t.Errorf("%+v: %v", env, err)
		}
	}
}

// TestKernelRuntime: a kernel has the functions that a process has, and bounds what it waits for.
func TestKernelRuntime(t *testing.T) {
	l, err := ring.NewLayout(ring.Config{CPUs: 4, Events: 64, DataSize: 1 << 16, LockedOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &arch.CodegenEnv{Ring: 0xffffffffc1000000, Layout: l}
	env := KernelRuntimeEnv{KernelSlotEnv: kernelSlots(), Clock: 0xffffffffc0002000, Thread: 0xffffffffc0002040, Ticks: 1 << 30}
	kernel, err := NewKernelRuntime(0xffffffffc0800000, env, w)
	if err != nil {
		t.Fatal(err)
	}
	process, err := NewSlotRuntime(0x1000, SlotRuntimeEnv{SlotGateEnv: SlotGateEnv{Groups: 1}}, w)
	if err != nil {
		t.Fatal(err)
	}
	if have, want := slices.Sorted(maps.Keys(kernel.Symbols)), slices.Sorted(maps.Keys(process.Symbols)); !slices.Equal(have, want) {
		t.Errorf("functions %q, want %q", have, want)
	}
	for _, ticks := range []uint64{0, 1 << 62} {
		env.Ticks = ticks
		if _, err := NewKernelRuntime(0xffffffffc0800000, env, w); err == nil {
			t.Errorf("a wait of %d ticks", ticks)
		}
	}
}
