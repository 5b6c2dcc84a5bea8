package amd64

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// stackWords is a Memory of words from addr 0x1000 on.
type stackWords []uint64

func (s stackWords) Read(addr uint64, buf []byte) error {
	i := int(addr-0x1000) / 8
	if addr < 0x1000 || addr%8 != 0 || i >= len(s) || len(buf) != 8 {
		return unix.EFAULT
	}
	binary.LittleEndian.PutUint64(buf, s[i])
	return nil
}

func (s stackWords) Write(uint64, []byte) error { return unix.EFAULT }

func testRegs(p *Point) *Regs {
	r := &Regs{
		AX: 1, BX: 2, CX: 3, DX: 4, SI: 5, DI: 6, BP: 7, SP: 0x1000,
		R8: 8, R9: 9, R10: 10, R11: 11, R12: 12, R13: 13, R14: 14, R15: 15, IP: 0x401000, Flags: 0x246,
	}
	r.Bind(p)
	return r
}

func TestRegsArg(t *testing.T) {
	mem := stackWords{100, 101, 102, 103, 104}
	for _, c := range []struct {
		name  string
		point *Point
		want  []uint64 // arguments from 0; the one after them is an error
		err   error
	}{
		{"c", &Point{Mem: mem}, []uint64{6, 5, 4, 3, 8, 9, 101, 102, 103, 104}, unix.EFAULT},
		{"c_pushed", &Point{Mem: mem, Ret: 16}, []uint64{6, 5, 4, 3, 8, 9, 103, 104}, unix.EFAULT},
		{"c_unknown", &Point{Mem: mem, Ret: -1}, []uint64{6, 5, 4, 3, 8, 9}, unix.EINVAL},
		{"c_no_memory", &Point{}, []uint64{6, 5, 4, 3, 8, 9}, unix.EFAULT},
		{"go", &Point{Mem: mem, Go: true}, []uint64{1, 2, 3, 6, 5, 8, 9, 10, 11}, unix.EINVAL},
		{"go_abi0", &Point{Mem: mem, Go: true, ABI0: true}, []uint64{101, 102, 103, 104}, unix.EFAULT},
		{"unbound", nil, nil, unix.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testRegs(c.point)
			for n, want := range c.want {
				if v, err := r.ArgErr(n); v != want || err != nil || r.Arg(n) != want {
					t.Errorf("argument %d: %d, %v, want %d", n, v, err, want)
				}
			}
			if v, err := r.ArgErr(len(c.want)); v != 0 || !errors.Is(err, c.err) || r.Arg(len(c.want)) != 0 {
				t.Errorf("argument %d: %d, %v", len(c.want), v, err)
			}
			for _, n := range []int{-1, 1 << 62} {
				if v, err := r.ArgErr(n); v != 0 || !errors.Is(err, unix.EINVAL) {
					t.Errorf("argument %d: %d, %v", n, v, err)
				}
			}
		})
	}
}

func TestRegsReturn(t *testing.T) {
	mem := stackWords{0x402000}
	for _, c := range []struct {
		name  string
		point *Point
		sp    uint64
		want  error
	}{
		{"entry", &Point{Mem: mem}, 0x1000, nil},
		{"pushed", &Point{Mem: mem, Ret: 8}, 0x1000, unix.EINVAL},
		{"unknown", &Point{Mem: mem, Ret: -1}, 0x1000, unix.EINVAL},
		{"bad_stack", &Point{Mem: mem}, 0x8, unix.EFAULT},
		{"no_memory", &Point{}, 0x1000, unix.EFAULT},
		{"unbound", nil, 0x1000, unix.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testRegs(c.point)
			r.SP = c.sp
			r.SetReturnValue(77)
			err := r.Return()
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || r.ReturnValue() != 77 {
				t.Fatalf("%v, want %v; value %d", err, c.want, r.ReturnValue())
			}
			ip, sp := uint64(0x401000), c.sp
			if err == nil {
				ip, sp = 0x402000, c.sp+8
			}
			if r.IP != ip || r.SP != sp {
				t.Errorf("goes on at %#x with the stack at %#x", r.IP, r.SP)
			}
		})
	}
}

func TestRegsStack(t *testing.T) {
	callers := func(n int) *Point {
		return &Point{Callers: func(r *Regs, pcs []uint64) int {
			return copy(pcs, []uint64{r.IP, 2, 3}) + n
		}}
	}
	for _, c := range []struct {
		name  string
		point *Point
		room  int
		want  []uint64
	}{
		{"all", callers(0), 8, []uint64{0x401000, 2, 3}},
		{"little_room", callers(0), 2, []uint64{0x401000, 2}},
		{"no_room", callers(0), 0, nil},
		{"claims_too_much", callers(9), 3, []uint64{0x401000, 2, 3}},
		{"claims_nonsense", callers(-9), 3, nil},
		{"nobody_knows", &Point{}, 3, nil},
		{"unbound", nil, 3, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := testRegs(c.point).Stack(make([]uint64, c.room)); !slices.Equal(got, c.want) {
				t.Errorf("%#x, want %#x", got, c.want)
			}
		})
	}
}

// What a handler may do without an allocator allocates nothing, errors included.
func TestRegsAllocateNothing(t *testing.T) {
	r := testRegs(&Point{Mem: stackWords{0x402000}})
	if n := testing.AllocsPerRun(100, func() {
		r.SP = 0x1000
		r.Arg(0)
		r.Arg(6)
		r.SetReturnValue(r.Arg(7))
		_ = r.Return()
		_ = r.Return()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRegsString(t *testing.T) {
	got := testRegs(nil).String()
	want := `RIP: 0033:0000000000401000
RSP: 002b:0000000000001000 EFLAGS: 00000246
RAX: 0000000000000001 RBX: 0000000000000002 RCX: 0000000000000003
RDX: 0000000000000004 RSI: 0000000000000005 RDI: 0000000000000006
RBP: 0000000000000007 R08: 0000000000000008 R09: 0000000000000009
R10: 000000000000000a R11: 000000000000000b R12: 000000000000000c
R13: 000000000000000d R14: 000000000000000e R15: 000000000000000f`
	if got != want || fmt.Sprint(testRegs(nil)) != want || strings.HasSuffix(got, "\n") {
		t.Errorf("have\n%s\nwant\n%s", got, want)
	}
}
