package guest_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"kprobes.dev/kprobes"
	gk "kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
)

// TestInDetour has a thread that seems to go on in a detour when everything is taken out: an
// idle thread's stack holds an address of it. The code stays, and the next tracer works beside
// it.
func TestInDetour(t *testing.T) {
	for _, low := range []bool{false, true} {
		g := testguest.Shared(t)
		p, ours, words, code := stays(t, g, low)
		q := attachMachine(p)
		theirs := q.add(&kprobes.AddOptions{Count: true}, "p:c __x64_sys_getppid")
		g.Hit("getppid", 100, 0)
		q.counts(theirs[0], 100)
		if codeOf(t, q) == code {
			t.Error("the new code lies on the old")
		}
		for _, w := range words {
			clear(w)
		}
		if err := q.core.Close(nil); err != nil {
			t.Error(err)
		}
		if l, err := q.t.FindLeftover(); l != nil || err != nil {
			t.Errorf("low %v: %+v, %v", low, l, err)
		}
		if err := p.m.Close(); err != nil {
			t.Error(err)
		}
		p.m = nil
		p.counts(ours[0], 100) // what was counted is there though the machine is closed
	}
}

// stays attaches and closes while the stacks of the idle threads lead into a detour. They count
// while they run: where all vCPUs of a busy machine do something else for a moment it is tried again.
func stays(t *testing.T, g *testguest.Guest, low bool) (p *probed, ours []*kprobes.Event, words [][]byte, code uint64) {
	t.Helper()
	const tries = 20
	for range tries {
		p = attach(t, g, &guest.Options{Low: low})
		ours = p.add(nil, "p:a __x64_sys_getppid", "p:b vfs_read")
		g.Hit("getppid", 100, 0)
		p.poll()
		words, code = idleWords(t, p), codeOf(t, p)
		for _, w := range words {
			binary.LittleEndian.PutUint64(w, code)
		}
		err := p.core.Close(p.take)
		if errors.Is(err, guest.ErrInDetour) {
			return p, ours, words, code
		}
		if err != nil {
			t.Fatalf("low %v: %v", low, err)
		}
		for _, w := range words {
			clear(w)
		}
		if err := p.m.Close(); err != nil {
			t.Fatal(err)
		}
		p.m = nil
	}
	t.Fatalf("low %v: %d times nobody was in the code", low, tries)
	return nil, nil, nil, 0
}

// attachMachine attaches to the machine of another once more.
func attachMachine(p *probed) *probed {
	p.Helper()
	t, err := guest.Attach(p.m, nil)
	if err != nil {
		p.Fatal(err)
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		p.Fatal(err)
	}
	return &probed{TB: p.TB, g: p.g, m: p.m, t: t, core: core}
}

// idleWords gives a word at the top of the stacks of the idle threads, where others have the
// registers of their program.
func idleWords(t *testing.T, p *probed) (out [][]byte) {
	t.Helper()
	err := p.t.Kernel().Tasks(func(task gk.Task) bool {
		if task.PID == 0 {
			pa, _, _, ok := p.t.Kernel().Translate(task.Stack.End - 64)
			if !ok {
				t.Fatal("an idle thread has no stack")
			}
			out = append(out, p.m.Bytes(pa, 8))
		}
		return true
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d idle threads, %v", len(out), err)
	}
	return out
}

// codeOf is the address of the detour of __x64_sys_getppid, from the jump to it.
func codeOf(t *testing.T, p *probed) uint64 {
	t.Helper()
	at, ok := p.t.Kernel().Addr("__x64_sys_getppid")
	var b [5]byte
	if !ok || p.t.Read(at+5, b[:]) != nil || b[0] != 0xe9 {
		t.Fatalf("no jump: % x", b)
	}
	return at + 10 + uint64(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
}
