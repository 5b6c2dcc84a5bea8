package amd64

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
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
		if got := KernelContext(nil, c.preempt, c.eflags); string(got[:]) != c.want+"\x00\x00\x00" {
			t.Errorf("preemption count %#x, flags %#x: %s, want %s", c.preempt, c.eflags, got, c.want)
		}
	}
}

// TestKernelColumns has the columns of other kernels: 5.10, and 5.10 and 6.1 with PREEMPT_RT.
func TestKernelColumns(t *testing.T) {
	old := []arch.KernelColumn{arch.ColumnIRQs, arch.ColumnResched, arch.ColumnInterrupt, arch.ColumnDepth}
	rt := []arch.KernelColumn{arch.ColumnIRQsBH, arch.ColumnResched, arch.ColumnOther, arch.ColumnInterrupt, arch.ColumnDepth, arch.ColumnOther, arch.ColumnOther}
	for _, c := range []struct {
		columns []arch.KernelColumn
		want    string
	}{
		{old, "dNh1"},
		{rt, "DN.h1.."},
		{slices.Concat(rt, rt), "DN.h1..D"},
	} {
		got := KernelContext(&arch.Kernel{Columns: c.columns}, 1<<16|0x201, 2)
		if s := strings.TrimRight(string(got[:]), "\x00"); s != c.want {
			t.Errorf("%v: %s, want %s", c.columns, s, c.want)
		}
	}
}

// TestKernelDisabled has the count of kernels that count there how often interrupts were disabled.
func TestKernelDisabled(t *testing.T) {
	const quiet, on = 1 << 31, 1<<9 | 2
	for preempt, want := range map[uint32]string{
		quiet: ".....", quiet | 1<<16: ".....", 3 << 16: ".N...", quiet | 1<<24: "..h..", quiet | 1<<28: "..z..", quiet | 1<<28 | 1<<24: "..Z..", quiet | 1<<24 | 0x100: "..H..",
	} {
		got := KernelContext(&arch.Kernel{HardirqShift: 24}, preempt, on)
		if s := strings.TrimRight(string(got[:]), "\x00"); s != want {
			t.Errorf("%#x: %s, want %s", preempt, s, want)
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
		if !ok || comm != want || string(context[:]) != "d..3.\x00\x00\x00" {
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
