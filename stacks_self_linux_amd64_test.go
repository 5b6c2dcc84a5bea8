//go:build !race

package kprobes_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/trace"
)

// ownStacks are the stacks that stacked has seen of itself.
var ownStacks [][]uintptr

//go:noinline
func stacked(n int) int {
	pcs := make([]uintptr, 32)
	ownStacks = append(ownStacks, pcs[:runtime.Callers(2, pcs)])
	return n + 1
}

//go:noinline
func stackedDeep(n int) int {
	var room [200]byte // the stack grows
	room[n%len(room)] = 1
	if n == 0 {
		return stacked(n)
	}
	return stackedDeep(n-1) + int(room[n%len(room)])
}

// TestSelfStacks compares the stacks of the own process's calls with those that Go's runtime tells.
func TestSelfStacks(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	var defs []*event.Def
	for _, text := range []string{"p:entry " + selfPrefix + "stacked n=$arg1", "r:exit " + selfPrefix + "stacked v=$retval"} {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		d.Stack = 32
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	if err != nil {
		t.Fatal(err)
	}
	ownStacks = nil
	for i := range 20 {
		stackedDeep(i)
	}
	done := make(chan int)
	go func() { done <- stackedDeep(25) }()
	<-done
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	got := map[string][][]trace.Frame{}
	var frames []trace.Frame
	for len(got["entry"]) < len(ownStacks) || len(got["exit"]) < len(ownStacks) {
		core.Poll(func(h *kprobes.Hit) {
			fs, end, err := h.Callers(nil)
			if err != nil || end != trace.StackWhole {
				t.Fatalf("%s: %v, %v", h.Event.Name, end, err)
			}
			got[h.Event.Name] = append(got[h.Event.Name], fs)
			frames = fs
		})
	}
	for name, stacks := range got {
		for i, own := range ownStacks {
			if !sameStack(own, stacks[i]) {
				t.Fatalf("%s %d: %v, the runtime says %x", name, i, stacks[i], own)
			}
		}
	}
	if ls := core.Lines(frames[0].At()); len(ls) == 0 || ls[0].Line == 0 {
		t.Errorf("lines of %v: %v", frames[0], ls)
	}
	bad := *defs[0]
	bad.Name, bad.Stack = "bad", event.MaxStack+1
	if _, err := core.Add([]*event.Def{&bad}, nil); !errors.Is(err, unix.E2BIG) {
		t.Errorf("%d callers: %v", bad.Stack, err)
	}
}

// sameStack compares the functions of a stack with those that Go's runtime tells, which leaves out what the compiler has wrapped
// around functions. Nothing in it is inlined.
func sameStack(own []uintptr, fs []trace.Frame) bool {
	var lines, mine []int
	each := runtime.CallersFrames(own)
	for {
		f, more := each.Next()
		if f.Func != nil {
			lines = append(lines, int(f.Entry))
		}
		if !more {
			break
		}
	}
	for _, f := range fs {
		if fn := runtime.FuncForPC(uintptr(f.At())); fn != nil && !strings.Contains(fn.Name(), ".gowrap") {
			mine = append(mine, int(fn.Entry()))
		}
	}
	if len(lines) != len(mine) {
		return false
	}
	for i := range lines {
		if lines[i] != mine[i] {
			return false
		}
	}
	return true
}
