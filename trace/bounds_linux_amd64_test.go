package trace

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Groups that have events of their own take no probes, and neither does a synthetic event lose its name to one.
func TestGroupsOfOthers(t *testing.T) {
	_, in := instance(t, nil)
	must(t, in.WriteSynthetic("foo u64 v"))
	for _, def := range []string{"p:synthetic/foo f_push", "p:synthetic/bar f_push", "p:ftrace/print f_push"} {
		if err := in.Write(def); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", def, err)
		}
	}
	if got := text(t, in.WriteDynamics); got != "s:synthetic/foo\tu64 v\n" {
		t.Errorf("definitions %q", got)
	}
}

// Sizes and CPUs that can not be are refused, and change nothing.
func TestBounds(t *testing.T) {
	in := New(nil, nil)
	for cpu, bytes := range map[int]int{AllCPUs: 0, 1 << 20: 4096, -2: 4096} {
		if err := in.SetBufferSize(cpu, bytes); !errors.Is(err, unix.EINVAL) {
			t.Errorf("CPU %d, %d bytes: %v", cpu, bytes, err)
		}
	}
	in.ClearCPU(-2)
	if got := in.BufferSize(AllCPUs); got != DefaultBuffer {
		t.Errorf("%d bytes", got)
	}
	for name, no := range map[string]error{strings.Repeat("n", 256): unix.ENAMETOOLONG, "a\nb": unix.EINVAL} {
		if _, err := in.NewInstance(name); !errors.Is(err, no) {
			t.Errorf("%.10q: %v", name, err)
		}
	}
}

// endless ends the context of who writes to it after some writes, and lets no reader run out of records.
type endless struct {
	in     *Instance
	cancel func()
	writes int
}

func (e *endless) Write(b []byte) (int, error) {
	if e.writes++; e.writes == 3 {
		e.cancel()
	}
	_, err := e.in.Mark(1, "more")
	return len(b), err
}

// WriteTo gives what Read has left, and ends with its context though records keep coming.
func TestWriteTo(t *testing.T) {
	in := New(nil, nil)
	_, err := in.Mark(1, "the first")
	must(t, err)
	p := in.Pipe()
	if b, err := p.Read(t.Context(), 5, false); err != nil || len(b) != 5 {
		t.Fatalf("%q: %v", b, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var rest bytes.Buffer
	e := &endless{in: in, cancel: cancel}
	err = p.WriteTo(ctx, writers{&rest, e}, nil)
	if !errors.Is(err, context.Canceled) || e.writes != 3 || !strings.Contains(rest.String(), "the first\n") {
		t.Errorf("%d writes, %v: %q", e.writes, err, rest.String())
	}
}

// writers write to two.
type writers struct {
	a *bytes.Buffer
	b *endless
}

func (w writers) Write(b []byte) (int, error) {
	w.a.Write(b)
	return w.b.Write(b)
}

// An event that is armed without its filter, since a trigger needed that, shows what passes the filter when the trigger has gone and it
// could not be armed anew.
func TestFilterStays(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.SetFilter("kprobes", "a", "v != 0x123456789"))
	must(t, in.Enable("kprobes", "a", true))
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid"))
	in.mu.Lock()
	in.pollMu.Lock()
	err := in.set.Write("kprobes", "a", "!hist:keys=common_pid") // and nobody settles
	in.pollMu.Unlock()
	in.mu.Unlock()
	must(t, err)
	if n := goes(prog, 20, "f_push"); lines(t, in, "a") != n || n == 0 {
		t.Errorf("%d lines of %d", lines(t, in, "a"), n)
	}
	must(t, in.SetFilter("kprobes", "a", "v == 0x123456789"))
	in.Clear()
	goes(prog, 20, "f_push")
	if n := lines(t, in, "a"); n != 0 {
		t.Errorf("%d lines pass a filter that none passes", n)
	}
}
