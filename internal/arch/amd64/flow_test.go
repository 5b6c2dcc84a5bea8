package amd64

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func hexBytes(t testing.TB, s ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(s, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestExits(t *testing.T) {
	const a = 0x1000
	for _, c := range []struct {
		name string
		fn   Func
		code []string
		want []Exit
	}{
		{"ret", Func{}, []string{"c3"}, []Exit{{Addr: a, Kind: ExitRet}}},
		{"ret_imm", Func{}, []string{"c20800"}, []Exit{{Addr: a, Kind: ExitRet}}},
		{"rep_ret", Func{}, []string{"f3c3"}, []Exit{{Addr: a, Kind: ExitRet}}},
		{"tail_jump", Func{}, []string{"e9fb0f0000"}, []Exit{{Addr: a, Kind: ExitTailJmp, Target: 0x2000}}},
		{"tail_jcc", Func{}, []string{"0f84fa0f0000", "c3"}, []Exit{{Addr: a, Kind: ExitTailJcc, Target: 0x2000}, {Addr: a + 6, Kind: ExitRet}}},
		{"jump_inside_is_none", Func{}, []string{"eb01", "90", "c3"}, []Exit{{Addr: a + 3, Kind: ExitRet}}},
		{"jump_to_itself_is_none", Func{}, []string{"e9fbffffff"}, nil},
		{"got_jump", Func{}, []string{"ff25 fa0f0000"}, []Exit{{Addr: a, Kind: ExitIndirectTail}}},
		{"bnd_got_jump", Func{}, []string{"f2ff25 fa0f0000"}, []Exit{{Addr: a, Kind: ExitIndirectTail}}},
		{"register_tail_call", Func{}, []string{"ffe7"}, []Exit{{Addr: a, Kind: ExitIndirectTail}}},
		{"vtable_tail_call", Func{}, []string{"488b07", "ff6018"}, []Exit{{Addr: a + 3, Kind: ExitIndirectTail}}},
		{"tail_call_behind_frame", Func{}, []string{"55", "4889e5", "4883ec10", "488b4708", "c9", "ffe0"}, []Exit{{Addr: a + 13, Kind: ExitIndirectTail}}},
		{"call_at_the_end", Func{}, []string{"e8fb0f0000"}, []Exit{{Addr: a, Kind: ExitNoReturnCall, Target: 0x2000}}},
		{"call_before_padding", Func{}, []string{"e8fb0f0000", "660f1f440000"}, []Exit{{Addr: a, Kind: ExitNoReturnCall, Target: 0x2000}}},
		{"call_before_code", Func{}, []string{"e8fb0f0000", "90", "c3"}, []Exit{{Addr: a + 6, Kind: ExitRet}}},
		{
			"call_known_not_to_return",
			Func{NoReturn: func(x uint64) bool { return x == 0x2000 }},
			[]string{"e8fb0f0000", "31c0", "c3"},
			[]Exit{{Addr: a, Kind: ExitNoReturnCall, Target: 0x2000}, {Addr: a + 7, Kind: ExitRet, Swept: true}},
		},
		{
			"go_call_before_int3",
			Func{Go: true},
			[]string{"e8fb0f0000", "cc", "c3"},
			[]Exit{{Addr: a, Kind: ExitNoReturnCall, Target: 0x2000}, {Addr: a + 6, Kind: ExitRet}},
		},
		{"ud2", Func{}, []string{"0f0b"}, []Exit{{Addr: a, Kind: ExitTrap}}},
		{
			"padding_behind_code_that_nothing_reaches", // WARN of a kernel: it goes on behind ud2
			Func{},
			[]string{"31c0", "c3", "0f0b", "ebf9", "660f1f440000"},
			[]Exit{{Addr: a + 2, Kind: ExitRet}, {Addr: a + 3, Kind: ExitTrap, Swept: true}},
		},
		{"hlt", Func{}, []string{"f4"}, []Exit{{Addr: a, Kind: ExitTrap}}},
		{"int3_goes_on", Func{}, []string{"cc", "c3"}, []Exit{{Addr: a + 1, Kind: ExitRet}}},
		{"exit_syscall", Func{}, []string{"b83c000000", "0f05"}, []Exit{{Addr: a + 5, Kind: ExitSyscall}}},
		{"falls_through_the_end", Func{}, []string{"31c0"}, []Exit{{Addr: a, Kind: ExitFallThrough, Target: a + 2}}},
		{"cold_part", Func{Parts: []Part{{0x3000, []byte{0xc3}}}}, []string{"0f84fa1f0000", "c3"}, []Exit{{Addr: a + 6, Kind: ExitRet}, {Addr: 0x3000, Kind: ExitRet}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, reason := flowOf(t, c.fn, c.code...).Exits()
			if !slices.Equal(got, c.want) || reason != nil {
				t.Errorf("exits %+v, %v, want %+v", got, reason, c.want)
			}
		})
	}
}

func TestExitsUnknown(t *testing.T) {
	for _, c := range []struct {
		name string
		code []string
		part string // of the reason
	}{
		{"sum_of_registers", []string{"4801f8", "ffe0"}, "f+0x3 (ff e0)"},
		{"notrack_jump", []string{"3effe0"}, "f+0x0 (3e ff e0)"},
		{"jump_inside_a_frame", []string{"4883ec18", "ffe0"}, "f+0x4 (ff e0)"},
		{"far_return", []string{"cb"}, "f+0x0 (cb)"},
		{"interrupt_return", []string{"48cf"}, "f+0x0 (48 cf)"},
		{"bytes_that_are_no_instruction", []string{"7401", "c3", "06"}, "f+0x3 is reached"},
		{"cut_off_at_the_end", []string{"90", "b801"}, "f+0x1 is reached"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, reason := flowOf(t, Func{Name: "f"}, c.code...).Exits()
			if !errors.Is(reason, ErrExitsUnknown) || !strings.Contains(reason.Error(), c.part) {
				t.Errorf("reason %v, want %q", reason, c.part)
			}
		})
	}
}

func TestTargetsAndBoundaries(t *testing.T) {
	// The older glibc's way to leave out a lock prefix:
	//	1000 cmpl $0,%fs:0x18; 1009 je 100c; 100b lock cmpxchg %esi,(%rdi); 1010 ret
	fl := flowOf(t, Func{}, "64833c2518000000 00", "7401", "f00fb137", "c3")
	if !fl.Target(0x100c) || fl.Target(0x100b) {
		t.Errorf("targets: 0x100c %v, 0x100b %v", fl.Target(0x100c), fl.Target(0x100b))
	}
	if ok, in := fl.Boundary(0x100c); ok || in != 0x100b {
		t.Errorf("boundary inside the locked instruction: %v, 0x%x", ok, in)
	}
	if ok, _ := fl.Boundary(0x100b); !ok {
		t.Error("the locked instruction is no boundary")
	}
	if ok, in := fl.Boundary(0x1004); ok || in != 0x1000 {
		t.Errorf("boundary in the middle: %v, 0x%x", ok, in)
	}
	if ok, in := fl.Boundary(0x2000); ok || in != 0 {
		t.Errorf("boundary outside: %v, 0x%x", ok, in)
	}
	if live := fl.LiveAt(0x100b); live != AllRegs {
		t.Errorf("two instructions in the same bytes: %#x live", live)
	}
}

func TestUnresolvedJumpMakesAllTargets(t *testing.T) {
	fl := flowOf(t, Func{}, "4883ec18", "31c0", "ffe1", "31d2", "c3")
	if !slices.Equal(fl.Unresolved(), []uint64{0x1006}) {
		t.Fatalf("unresolved %#x", fl.Unresolved())
	}
	for a := range fl.All() {
		if !fl.Target(a) {
			t.Errorf("0x%x is no target", a)
		}
	}
	if fl.Target(0x1001) {
		t.Error("the middle of an instruction is a target")
	}
}

func TestSweep(t *testing.T) {
	// ret; nop; then code that nothing reaches and that fits; then bytes that don't.
	fl := flowOf(t, Func{}, "c3", "90", "31c0", "eb00", "c3")
	if ok, _ := fl.Boundary(0x1002); !ok || fl.Reachable(0x1002) || !fl.Target(0x1002) {
		t.Errorf("swept code: boundary %v, reachable %v, target %v", ok, fl.Reachable(0x1002), fl.Target(0x1002))
	}
	if !fl.Target(0x1006) {
		t.Error("a branch of swept code gives no target")
	}
	if fl := flowOf(t, Func{Go: true}, "c3", "cc", "31c0", "c3"); !fl.Reachable(0x1002) {
		t.Error("code behind padding in Go is not taken as reached")
	}
	if _, ok := flowOf(t, Func{}, "c3", "31c0", "06").Inst(0x1001); ok {
		t.Error("bytes that don't decode to the end are taken as code")
	}
	// A jump of swept code into the middle of a known instruction: data.
	if _, ok := flowOf(t, Func{}, "b801000000", "c3", "ebf9").Inst(0x1006); ok {
		t.Error("bytes that jump into an instruction are taken as code")
	}
}

func TestNeighbours(t *testing.T) {
	fl := flowOf(t, Func{Parts: []Part{{0x3000, []byte{0x90, 0xc3}}}}, "31c0", "0f84f81f0000", "c3", "0f1f00", "cc")
	if a, _, ok := fl.Next(0x1002); !ok || a != 0x1008 {
		t.Errorf("next 0x%x %v", a, ok)
	}
	if a, _, ok := fl.Next(0x1000); !ok || a != 0x1002 {
		t.Errorf("next 0x%x %v", a, ok)
	}
	if a, _, ok := fl.Next(0x1008); ok {
		t.Errorf("next behind the last: 0x%x", a)
	}
	if a, ok := fl.Prev(0x1008); !ok || a != 0x1002 {
		t.Errorf("prev 0x%x %v", a, ok)
	}
	if a, ok := fl.Prev(0x3000); ok {
		t.Errorf("prev of a part: 0x%x", a)
	}
	if n := fl.PaddingAt(0x1009); n != 4 {
		t.Errorf("padding %d, want 4", n)
	}
	if n := fl.PaddingAt(0x1008); n != 0 {
		t.Errorf("padding at code %d", n)
	}
	if b := fl.Bytes(0x1008, 99); !slices.Equal(b, hexBytes(t, "c30f1f00cc")) || fl.Bytes(0x5000, 1) != nil || fl.Bytes(0x1000, -1) != nil {
		t.Errorf("bytes % x", b)
	}
	var all []uint64
	for a := range fl.All() {
		all = append(all, a)
	}
	if !slices.Equal(all, []uint64{0x1000, 0x1002, 0x1008, 0x3000, 0x3001}) || fl.Addr() != 0x1000 || fl.End() != 0x100d {
		t.Errorf("all %#x", all)
	}
}

func TestPadding(t *testing.T) {
	for _, c := range []struct {
		hex  string
		want int
	}{
		{"", 0},
		{"90 cc 00 00", 4},
		{"66 90 0f1f00 0f1f4000 0f1f440000 660f1f440000 0f1f8000000000 0f1f840000000000 660f1f840000000000", 44},
		{"66662e0f1f840000000000 c3", 11},
		{"488d7600 90", 0},
		{"488db600000000 488db42600000000", 15},
		{"6690 f390", 2},
		{"4190", 0},
		{"0001", 0},
		{"c3", 0},
		{"660f1f", 0},
	} {
		if got := padding(hexBytes(t, c.hex)); got != c.want {
			t.Errorf("padding(%s) = %d, want %d", c.hex, got, c.want)
		}
	}
}

func TestAnalyseRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   Func
	}{
		{"no_code", Func{Addr: 0x1000}},
		{"wraps", Func{Addr: ^uint64(0), Code: []byte{0x90, 0xc3}}},
		{"too_long", Func{Addr: 0x1000, Code: make([]byte, maxFuncBytes+1)}},
		{"parts_overlap", Func{Addr: 0x1000, Code: make([]byte, 16), Parts: []Part{{0x100f, []byte{0xc3}}}}},
		{"too_many_parts", Func{Addr: 0x1000, Code: []byte{0xc3}, Parts: make([]Part, maxParts+1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if fl, err := Analyse(&c.fn); !errors.Is(err, ErrFunc) || fl != nil {
				t.Errorf("got %v, %v", fl, err)
			}
		})
	}
}

// tryFlow analyses whatever bytes and asks everything; it must come back.
func tryFlow(code []byte, data []byte, isGo bool) {
	code = code[:min(len(code), 4096)] // what is asked of it takes the square of its length
	f := &Func{
		Name: "fuzz", Addr: 0x401000, Code: code, Go: isGo, Entries: []uint64{0x401003, 0},
		Mem: func(addr uint64, buf []byte) error {
			if len(data) == 0 {
				return errors.New("no data")
			}
			for i := range buf {
				buf[i] = data[(addr+uint64(i))%uint64(len(data))]
			}
			return nil
		},
		Inside: func(addr uint64) (uint64, bool) { return addr &^ 0xfff, addr>>24 == 0 },
	}
	fl, err := Analyse(f)
	if err != nil {
		return
	}
	exits, _ := fl.Exits()
	for _, e := range exits {
		_ = e.Kind.String()
	}
	for a := f.Addr - 1; a < f.Addr+uint64(len(code))+1; a++ {
		fl.LiveAt(a)
		fl.Boundary(a)
		fl.Target(a)
		fl.Next(a)
		fl.Prev(a)
		fl.PaddingAt(a)
	}
	fl.IndirectJumps()
}

func FuzzAnalyse(f *testing.F) {
	f.Add(hexBytes(f, "83ff07 7710 488d1500000000 4863 04ba 4801d0 ffe0 c3"), hexBytes(f, "f0ffffff f1ffffff"), false)
	f.Add(hexBytes(f, "ff24c500104000"), hexBytes(f, "0010400000000000"), true)
	f.Fuzz(func(t *testing.T, code, data []byte, isGo bool) { tryFlow(code, data, isGo) })
}

// Random code, rich in branches and indirect jumps, with tables that point everywhere.
func TestAnalyseOfNoise(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	pieces := []string{"ffe0", "ff24c500104000", "ff2500000000", "7405", "eb03", "e800000000", "488d0500000000", "486304b8", "4801c8", "83f807", "7702", "c3", "0f0b", "c9", "5d", "55", "c5f877", "f0", "66", "48"}
	for range 300 {
		var code []byte
		for range 200 {
			code = append(code, hexBytes(t, pieces[rnd.IntN(len(pieces))])...)
			if rnd.IntN(4) == 0 {
				code = binary.LittleEndian.AppendUint16(code, uint16(rnd.Uint32()))
			}
		}
		data := make([]byte, 64)
		for i := 0; i < len(data); i += 8 {
			binary.LittleEndian.PutUint64(data[i:], 0x401000+rnd.Uint64N(uint64(len(code))))
		}
		tryFlow(code, data, rnd.IntN(2) == 0)
	}
}

// A function of the greatest size is analysed, however its branches go.
func TestAnalyseOfLargeFunction(t *testing.T) {
	code := make([]byte, 1<<20)
	for i := 0; i+6 <= len(code); i += 6 { // jz anywhere
		copy(code[i:], []byte{0x0f, 0x84})
		to := (i*7919 + 13) % len(code) / 6 * 6
		binary.LittleEndian.PutUint32(code[i+2:], uint32(int32(to-i-6)))
	}
	fl, err := Analyse(&Func{Name: "large", Addr: 0x1000, Code: code})
	if err != nil {
		t.Fatal(err)
	}
	if n, want := len(fl.nodes), len(code)/6+2; n != want { // the rest is add %al,(%rax), twice
		t.Errorf("%d instructions, want %d", n, want)
	}
	if live := fl.LiveAt(0x1000); live != AllRegs {
		t.Errorf("live %#x", live)
	}
}
