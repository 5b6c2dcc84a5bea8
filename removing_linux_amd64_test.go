package kprobes_test

import (
	"bytes"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// TestRemoveAgain: somebody else traces the program when events are removed, so that their code
// stays. It goes with the next removal, though there is nothing left to remove.
func TestRemoveAgain(t *testing.T) {
	prog, c := attach(t, "stand")
	orig := originals(t, c, "first", "second")
	var defs []*event.Def
	for _, text := range []string{"p:one first", "p:two second"} {
		d, err := event.Parse(text)
		must(t, err)
		defs = append(defs, d)
	}
	evs, err := c.Add(defs, &kprobes.AddOptions{Count: true})
	must(t, err)
	at := map[string]uint64{"first": addrOf(t, c, "first"), "second": addrOf(t, c, "second")}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(t, unix.PtraceSeize(prog.PID))
	if err := c.Remove(evs); err == nil {
		t.Error("removed from a program that somebody else traces")
	}
	must(t, unix.PtraceInterrupt(prog.PID))
	if _, err := unix.Wait4(prog.PID, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	must(t, unix.PtraceDetach(prog.PID))
	if b := bytesAt(t, c, at["first"]); b[0] != byJump {
		t.Errorf("% x stands at first, want the jump that could not be taken out", b)
	}
	must(t, c.Remove(evs))
	for fn, addr := range at {
		if b := bytesAt(t, c, addr); !bytes.Equal(b, orig[fn]) {
			t.Errorf("%s: % x is left, want % x", fn, b, orig[fn])
		}
	}
	before := c.Counts(evs[0])
	prog.Counts("go 10")
	if now := c.Counts(evs[0]); now != before {
		t.Errorf("%+v after the removal, %+v before", now, before)
	}
}
