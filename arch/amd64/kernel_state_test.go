package amd64

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// TestKernelContext holds the characters to those of print_lat_fmt.
func TestKernelContext(t *testing.T) {
	const quiet, on = 1 << 31, 1<<9 | 2
	for _, c := range []struct {
		preempt, eflags uint32
		want            string
	}{
		{quiet, on, "....."},
		{quiet, 2, "d...."},
		{quiet | 0x200, on, "b...."},
		{quiet | 0x200, 2, "D...."},
		{0, on, ".N..."},
		{quiet | 1<<16, 2, "d.h.."},
		{quiet | 1<<16 | 1, 2, "d.h1."},
		{quiet | 0x100, on, "..s.."},
		{quiet | 0x101, on, "..s1."},
		{quiet | 1<<16 | 0x100, 2, "d.H.."},
		{quiet | 1<<20, 2, "d.z.."},
		{quiet | 1<<20 | 1<<16 | 0x300, 2, "D.Z.."},
		{quiet | 10, on, "...a."},
		{quiet | 0x17, on, "...f."},
		{0xff, 2, "dN.f."},
	} {
		if got := KernelContext(c.preempt, c.eflags); string(got[:]) != c.want {
			t.Errorf("preemption count %#x, flags %#x: %s, want %s", c.preempt, c.eflags, got, c.want)
		}
	}
}

// TestKernelTasks reads records of all kinds of tasks, many of them, and none.
func TestKernelTasks(t *testing.T) {
	var k KernelTasks
	rec := make([]byte, KernelRecord)
	binary.LittleEndian.PutUint32(rec[KernelPreempt:], 1<<31|3)
	set := func(name string) {
		clear(rec[KernelComm:])
		copy(rec[KernelComm:], name)
	}
	for name, want := range map[string]string{
		"init\x00garbage": "init", "kworker/0:1-even": "kworker/0:1-even", "a\nb\x1b[31m\x7f": `a\x0ab\x1b[31m\x7f`,
		"": "<...>", "\xff\xfe": "?", "\xc3\xa4": "ä",
	} {
		set(name)
		comm, context, ok := k.Read(rec)
		if !ok || comm != want || string(context[:]) != "d..3." {
			t.Errorf("%q: %q, %q, %v; want %q", name, comm, context, ok, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { k.Read(rec) }); n != 0 {
		t.Errorf("%v allocations for a name that is known", n)
	}
	for i := range 3 * maxTaskNames {
		set(fmt.Sprint(i))
		if comm, _, _ := k.Read(rec); comm != fmt.Sprint(i) {
			t.Fatalf("task %d is %q", i, comm)
		}
	}
	if len(k.names) > maxTaskNames {
		t.Errorf("%d names are remembered", len(k.names))
	}
	if _, _, ok := k.Read(rec[:KernelRecord-1]); ok {
		t.Error("a short record was read")
	}
}
