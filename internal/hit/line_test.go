package hit

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// testNames is a program with one function of 0x20 bytes at 0x1000 and one of a library
// at 0x7000.
type testNames struct{}

func (testNames) Symbol(addr uint64) (fetch.Sym, bool) {
	switch {
	case addr-0x1000 < 0x20:
		return fetch.Sym{Name: "serve", Off: addr - 0x1000, Size: 0x20}, true
	case addr-0x7000 < 0x40:
		return fetch.Sym{Name: "read", Module: "libc.so.6", Off: addr - 0x7000, Size: 0x40}, true
	}
	return fetch.Sym{}, false
}

func (testNames) Comm(int) string { return "server" }

// testEnv is the least that an argument needs.
type testEnv struct{}

func (testEnv) Reg(string) (fetch.Base, bool) {
	return fetch.Base{Kind: fetch.BaseReg, Reg: 7}, true
}
func (testEnv) Stack() fetch.Base              { return fetch.Base{Kind: fetch.BaseReg, Reg: 4} }
func (testEnv) Arg(int) (fetch.Base, error)    { return fetch.Base{Kind: fetch.BaseReg, Reg: 7}, nil }
func (testEnv) RetVal(int) (fetch.Base, error) { return fetch.Base{Kind: fetch.BaseReg}, nil }
func (testEnv) Symbol(string) (uint64, error)  { return 0x1000, nil }
func (testEnv) Addr(a uint64) uint64           { return a }
func (testEnv) File(off int64) uint64          { return uint64(off) }

func program(t *testing.T, def string, at fetch.Point) *fetch.Program {
	t.Helper()
	d, err := event.Parse(def)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fetch.Compile(d, testEnv{}, at)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// record is a header, an optional return address, and words of arguments.
func record(words ...uint64) []byte {
	b := make([]byte, 16)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func TestText(t *testing.T) {
	probe := program(t, "p serve fd=%di:s32 name=$comm", fetch.PointEntry)
	ret := program(t, "r serve got=$retval:x64", fetch.PointReturn)
	tests := []struct {
		name string
		hit  Hit
		want string
	}{
		{
			"probe",
			Hit{Event: &Event{Name: "in", Addr: 0x1004, Prog: probe, ArgsOff: 16}, Nanos: 12_345_678_999, CPU: 3, TID: 77, Rec: record(0xffffffff)},
			"          server-77      [003] .....    12.345678: in: (serve+0x4/0x20) fd=-1 name=\"server\"\n",
		},
		{
			"return",
			Hit{Event: &Event{Name: "out", Addr: 0x1000, Return: true, Prog: ret, ArgsOff: 24}, Nanos: 1e9, TID: 1234567, Caller: 0x7010, Rec: record(0x7010, 42)},
			"          server-1234567 [000] .....     1.000000: out: (read+0x10/0x40 [libc.so.6] <- serve) got=0x2a\n",
		},
		{
			"unknown_result",
			Hit{Event: &Event{Name: "out", Addr: 0x1000, Return: true, Prog: ret, ArgsOff: 24}, Caller: 0x99, Unknown: true, Rec: record(0x99, 42)},
			"          server-0       [000] .....     0.000000: out: (0x00000099 <- serve) got=(unknown)\n",
		},
		{
			"no_symbol_no_arguments",
			Hit{Event: &Event{Name: "a", Addr: 0xabc}, Rec: record()},
			"          server-0       [000] .....     0.000000: a: (0x00000abc)\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Printer{Names: testNames{}}
			if d := cmp.Diff(tt.want, string(p.Text(nil, &tt.hit))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDamagedRecord(t *testing.T) {
	prog := program(t, "p serve a=%di b=%si", fetch.PointEntry)
	h := Hit{Event: &Event{Name: "in", Addr: 0x1000, Prog: prog, ArgsOff: 16}, Rec: record(1)}
	p := Printer{Names: testNames{}}
	if got := string(p.Text(nil, &h)); !strings.Contains(got, "record damaged") {
		t.Errorf("text %q does not say that the record is damaged", got)
	}
	if got := string(p.JSON(nil, &h)); !strings.Contains(got, `"error":"record damaged`) {
		t.Errorf("JSON %q does not say that the record is damaged", got)
	}
}

func TestJSON(t *testing.T) {
	prog := program(t, "r serve got=$retval:s64 sym=$retval:symbol", fetch.PointReturn)
	h := Hit{
		Event: &Event{Group: "g", Name: "out", Addr: 0x1000, Return: true, Prog: prog, ArgsOff: 24},
		Nanos: 5_000_000_001, CPU: 1, TID: 9, GoID: 18, Caller: 0x7001, Rec: record(0x7001, ^uint64(0), 0x1002),
	}
	p := Printer{Names: testNames{}}
	var got map[string]any
	if err := json.Unmarshal(p.JSON(nil, &h), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"time": 5.000000001, "event": "g/out", "comm": "server", "pid": 9.0, "cpu": 1.0, "goid": 18.0,
		"at": "serve", "caller": "read+0x1/0x40 [libc.so.6]",
		"args": map[string]any{"got": -1.0, "sym": "serve+0x2/0x20"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// comms is a Namer that knows one thread.
type comms struct {
	testNames
	name string
}

func (c comms) Comm(int) string { return c.name }

// The head of a line is what printf makes of it.
func TestHead(t *testing.T) {
	for _, comm := range []string{"", "sh", "sixteen letters!", "seventeen letters", "Grüße"} {
		for _, n := range []uint64{0, 7, 99, 1000, 123_456, 99_999_999_999, 1<<63 - 1} {
			h := Hit{Event: &Event{Name: "in"}, Nanos: n, CPU: int(n % 2048), TID: int(n % (1 << 31))}
			p := Printer{Names: comms{name: comm}}
			want := fmt.Sprintf("%16s-%-7d [%03d] ..... %5d.%06d: in: ", comm, h.TID, h.CPU, n/1e9, n%1e9/1000)
			if got := string(p.Head(nil, &h, "in")); got != want {
				t.Errorf("%q, not %q", got, want)
			}
		}
	}
}

// Printing takes no memory: in our own process the allocator may be what is probed.
func TestTextAllocates(t *testing.T) {
	probe := program(t, "p serve a=%di b=%si:u64", fetch.PointEntry)
	h := Hit{Event: &Event{Name: "in", Addr: 0x1004, Prog: probe, ArgsOff: 16}, Nanos: 12_345_678_999, CPU: 3, TID: 77777, Rec: record(1<<40, 1<<50)}
	p := Printer{Names: testNames{}}
	buf := p.Text(nil, &h)
	if n := testing.AllocsPerRun(100, func() { buf = p.Text(buf[:0], &h) }); n != 0 {
		t.Errorf("%v allocations for a line", n)
	}
}

// TestStackAlone prints a stack without its hit, and a hit without its stack. What calls there are is not asked here.
func TestStackAlone(t *testing.T) {
	prog := *program(t, "p serve fd=%di:s32", fetch.PointEntry)
	prog.Stack = 4
	h := Hit{Event: &Event{Group: "g", Name: "in", Addr: 0x1004, Prog: &prog, ArgsOff: 16}, Nanos: 12_345_678_999, CPU: 3, TID: 77, Rec: record(7)}
	p := Printer{Names: testNames{}}
	const head = "          server-77      [003] .....    12.345678: "
	if got := string(p.Stack(nil, &h)); !strings.HasPrefix(got, head+"<stack trace>\n") || strings.Contains(got, "fd=") {
		t.Errorf("the stack alone: %q", got)
	}
	if got := string(p.StackJSON(nil, &h)); !json.Valid([]byte(got)) || !strings.Contains(got, `"stack`) || strings.Contains(got, `"at":"serve`) || strings.Contains(got, "args") {
		t.Errorf("the stack alone: %s", got)
	}
	h.NoStack = true
	if got := string(p.Text(nil, &h)); got != head+"in: (serve+0x4/0x20) fd=7\n" {
		t.Errorf("without its stack: %q", got)
	}
	if got := string(p.JSON(nil, &h)); strings.Contains(got, "stack") || !strings.Contains(got, `"fd":7`) {
		t.Errorf("without its stack: %s", got)
	}
}
