package linux

import (
	"encoding/binary"
	"fmt"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
)

func TestKernelTrigger(t *testing.T) {
	target := &probed{group: "kprobes", name: "e", ours: "kprobe_1_2_3_0/e"}
	for _, c := range []struct{ text, what, whole string }{
		{"traceoff", "traceoff", "traceoff"},
		{"stacktrace:3 if n > 5", "stacktrace", "stacktrace:3 if n > 5"},
		{"enable_event:kprobes:e if n > 5", "enable_event:kprobe_1_2_3_0:e", "enable_event:kprobe_1_2_3_0:e if n > 5"},
		{"disable_event:kprobes:e:0x10", "disable_event:kprobe_1_2_3_0:e", "disable_event:kprobe_1_2_3_0:e:16"},
	} {
		d, err := event.ParseTrigger(c.text)
		if err != nil {
			t.Fatal(err)
		}
		var of *probed
		if d.Command.HasTarget() {
			of = target
		}
		if what, whole := kernelTrigger(d, of); what != c.what || whole != c.whole {
			t.Errorf("%s: %q, %q", c.text, what, whole)
		}
	}
}

// The first trigger that switches something says how it begins.
func TestTriggersBegin(t *testing.T) {
	for _, c := range []struct {
		triggers     []string
		tracing, off bool
	}{
		{[]string{"stacktrace", "traceoff", "traceon", "disable_event:g:e", "enable_event:g:e"}, false, false},
		{[]string{"stacktrace", "traceon", "traceoff", "enable_event:g:e", "disable_event:g:e"}, true, true},
	} {
		p, s := &probed{}, switched{events: map[*probed]*event.Trigger{}}
		for _, text := range c.triggers {
			d, err := event.ParseTrigger(text)
			if err != nil {
				t.Fatal(err)
			}
			var target *probed
			if d.Command.HasTarget() {
				target = p
			}
			s.first(d, target)
		}
		if s.tracingOff() != c.tracing || s.off(p) != c.off {
			t.Errorf("%q: tracing off %v, event off %v", c.triggers, s.tracingOff(), s.off(p))
		}
	}
}

const stackFormatText = "name: kernel_stack\nID: 4\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n" +
	"\tfield:int size;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;\n"

func TestStackRecord(t *testing.T) {
	f, err := parseStackFormat(stackFormatText)
	if err != nil || f != (stackFormat{4, 16}) {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, text := range []string{"", "ID: 4\n", "ID: x\n\tfield:unsigned long caller[8];\toffset:16;\n", "ID: 4\n\tfield:unsigned long caller[8];\toffset:1;\n"} {
		if f, err := parseStackFormat(text); err == nil {
			t.Errorf("%q is taken: %+v", text, f)
		}
	}
	for _, c := range []struct {
		callers int
		pcs     []uint64
		want    string
	}{
		{0, []uint64{1 << 63, 2, 3}, "8000000000000000 [{2 false} {3 false}] "},
		{0, []uint64{1, 2, stackEnd, 4}, "1 [{2 false}] "},
		{1, []uint64{1, 2, 3}, "1 [{2 false}] more callers than are recorded"},
		{0, []uint64{1}, "1 [] "},
		{0, []uint64{stackEnd}, ""},
		{0, nil, ""},
	} {
		data := make([]byte, 16)
		data[0] = 4
		for _, pc := range c.pcs {
			data = binary.LittleEndian.AppendUint64(data, pc)
		}
		tr := &Target{o: Options{Callers: c.callers}, stack: f, stacks: map[uint64]*hit.Event{}}
		h, err := tr.hit(&rawRecord{data: append(data, 0, 0)}, nil)
		got := ""
		if h != nil {
			fs, end, err := h.Callers(nil)
			if err != nil || !IsStack(h) {
				t.Errorf("%v: %v", c.pcs, err)
			}
			got = fmt.Sprintf("%x %v %s", h.Event.Addr, fs, end)
		}
		if err != nil || got != c.want {
			t.Errorf("%x: %q, not %q: %v", c.pcs, got, c.want, err)
		}
	}
}
