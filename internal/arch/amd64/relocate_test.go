package amd64

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Where the code of the table stands: a program that is not position-independent, and a
// shared object.
const (
	lowText  = 0x401000
	highText = 0x7f0000001000
)

// relocCases: bytes in, bytes out; the copy stands copyAt(addr). out is what objdump
// reads in the copy, its last lines literals where there are any.
var relocCases = []struct {
	name string
	addr uint64
	to   uint64
	in   string // hex
	text string // what objdump reads there
	out  string // hex
	want string // what objdump reads in the copy, a line each
	data int    // bytes of literals at the end of out
}{
	{"register_move", lowText, lowText + 0x1000, "4889c8", "mov %rcx,%rax", "4889c8", "mov %rcx,%rax", 0},
	{"push_pop_unaffected", lowText, lowText + 0x1000, "55", "push %rbp", "55", "push %rbp", 0},
	{"rip_relative_load", lowText, lowText + 0x1000, "488b0510000000", "mov 0x10(%rip),%rax # 0x401017", "488b0510f0ffff", "mov -0xff0(%rip),%rax # 0x401017", 0},
	{"rip_relative_store_imm32", lowText, lowText + 0x1000, "c7051000000078563412", "movl $0x12345678,0x10(%rip) # 0x40101a", "c70510f0ffff78563412", "movl $0x12345678,-0xff0(%rip) # 0x40101a", 0},
	{"rip_relative_store_imm16", lowText, lowText + 0x1000, "66c705100000003412", "movw $0x1234,0x10(%rip) # 0x401019", "66c70510f0ffff3412", "movw $0x1234,-0xff0(%rip) # 0x401019", 0},
	{"rip_relative_compare_imm8", lowText, lowText + 0x1000, "803d1000000001", "cmpb $0x1,0x10(%rip) # 0x401017", "803d10f0ffff01", "cmpb $0x1,-0xff0(%rip) # 0x401017", 0},
	{"rip_relative_lea", lowText, lowText + 0x1000, "488d3d10000000", "lea 0x10(%rip),%rdi # 0x401017", "488d3d10f0ffff", "lea -0xff0(%rip),%rdi # 0x401017", 0},
	{"rip_relative_lea_out_of_reach", lowText, highText, "4c8d1d10000000", "lea 0x10(%rip),%r11 # 0x401017", "41bb17104000", "mov $0x401017,%r11d", 0},
	{"rip_relative_address_size", lowText, highText, "67488d0510000000", "lea 0x10(%eip),%rax # 0x401018", "67488d0510004000", "lea 0x400010(%eip),%rax # 0x7f0000401018", 0},
	{"rip_relative_lock_add", lowText, lowText + 0x1000, "f048830510000000ff", "lock addq $0xffffffffffffffff,0x10(%rip) # 0x401019", "f048830510f0ffffff", "lock addq $0xffffffffffffffff,-0xff0(%rip) # 0x401019", 0},
	{"rip_relative_sse", lowText, lowText + 0x1000, "660f6f0510000000", "movdqa 0x10(%rip),%xmm0 # 0x401018", "660f6f0510f0ffff", "movdqa -0xff0(%rip),%xmm0 # 0x401018", 0},
	{"rip_relative_vex2", lowText, lowText + 0x1000, "c5f92f0510000000", "vcomisd 0x10(%rip),%xmm0 # 0x401018", "c5f92f0510f0ffff", "vcomisd -0xff0(%rip),%xmm0 # 0x401018", 0},
	{"rip_relative_vex3_imm8", lowText, lowText + 0x1000, "c4e37d0605100000007f", "vperm2f128 $0x7f,0x10(%rip),%ymm0,%ymm0 # 0x40101a", "c4e37d060510f0ffff7f", "vperm2f128 $0x7f,-0xff0(%rip),%ymm0,%ymm0 # 0x40101a", 0},
	{"rip_relative_evex_disp_not_scaled", lowText, lowText + 0x1000, "62f1fd486f0510000000", "vmovdqa64 0x10(%rip),%zmm0 # 0x40101a", "62f1fd486f0510f0ffff", "vmovdqa64 -0xff0(%rip),%zmm0 # 0x40101a", 0},
	{"rip_relative_behind", highText, highText + 0x1000, "488b05f9efffff", "mov -0x1007(%rip),%rax # 0x7f0000000000", "488b05f9dfffff", "mov -0x2007(%rip),%rax # 0x7f0000000000", 0},
	{"rip_relative_cmpxchg16b", lowText, lowText + 0x1000, "480fc70d10000000", "cmpxchg16b 0x10(%rip) # 0x401018", "480fc70d10f0ffff", "cmpxchg16b -0xff0(%rip) # 0x401018", 0},
	{"rip_relative_bit_test_imm8", lowText, lowText + 0x1000, "0fba251000000003", "btl $0x3,0x10(%rip) # 0x401018", "0fba2510f0ffff03", "btl $0x3,-0xff0(%rip) # 0x401018", 0},
	{"rip_relative_jmp_memory", lowText, lowText + 0x1000, "ff2510000000", "jmp *0x10(%rip) # 0x401016", "ff2510f0ffff", "jmp *-0xff0(%rip) # 0x401016", 0},
	{"rip_relative_push_memory", lowText, lowText + 0x1000, "ff3510000000", "push 0x10(%rip) # 0x401016", "ff3510f0ffff", "push -0xff0(%rip) # 0x401016", 0},
	{"base_displacement_is_no_target", lowText, lowText + 0x1000, "488b8510000000", "mov 0x10(%rbp),%rax", "488b8510000000", "mov 0x10(%rbp),%rax", 0},
	{"absolute_disp32_is_no_target", lowText, lowText + 0x1000, "488b042510000000", "mov 0x10,%rax", "488b042510000000", "mov 0x10,%rax", 0},
	{"moffs_is_no_target", lowText, lowText + 0x1000, "48a11122334455667788", "movabs 0x8877665544332211,%rax", "48a11122334455667788", "movabs 0x8877665544332211,%rax", 0},
	{"rep_movs", lowText, lowText + 0x1000, "f3a4", "rep movsb %ds:(%rsi),%es:(%rdi)", "f3a4", "rep movsb %ds:(%rsi),%es:(%rdi)", 0},
	{"lock_xadd", lowText, lowText + 0x1000, "f0480fc103", "lock xadd %rax,(%rbx)", "f0480fc103", "lock xadd %rax,(%rbx)", 0},
	{"fs_load", lowText, lowText + 0x1000, "64488b042528000000", "mov %fs:0x28,%rax", "64488b042528000000", "mov %fs:0x28,%rax", 0},
	{"syscall", lowText, lowText + 0x1000, "0f05", "syscall", "0f05", "syscall", 0},
	{"ret", lowText, lowText + 0x1000, "c3", "ret", "c3", "ret", 0},
	{"ret_imm16", lowText, lowText + 0x1000, "c20800", "ret $0x8", "c20800", "ret $0x8", 0},
	{"bnd_ret", lowText, lowText + 0x1000, "f2c3", "bnd ret", "f2c3", "bnd ret", 0},
	{"jmp_register", lowText, lowText + 0x1000, "ffe0", "jmp *%rax", "ffe0", "jmp *%rax", 0},
	{"jmp_table", lowText, lowText + 0x1000, "ff24c500204000", "jmp *0x402000(,%rax,8)", "ff24c500204000", "jmp *0x402000(,%rax,8)", 0},
	{"notrack_jmp", lowText, lowText + 0x1000, "3effe2", "notrack jmp *%rdx", "3effe2", "notrack jmp *%rdx", 0},
	{"jcc_rel8", lowText, lowText + 0x1000, "7410", "je 0x401012", "0f840cf0ffff", "je 0x401012", 0},
	{"jcc_rel8_backward", lowText, lowText + 0x1000, "75fe", "jne 0x401000", "0f85faefffff", "jne 0x401000", 0},
	{"jcc_rel32", lowText, lowText + 0x1000, "0f8f00010000", "jg 0x401106", "0f8f00f1ffff", "jg 0x401106", 0},
	{"jcc_with_hint", lowText, lowText + 0x1000, "2e7410", "je,pn 0x401013", "0f840df0ffff", "je 0x401013", 0},
	{"jcc_out_of_reach", lowText, highText, "7410", "je 0x401012", "750eff25000000001210400000000000", "jne 0x7f0000001010\njmp *0x0(%rip) # 0x7f0000001008", 8},
	{"jmp_rel8", lowText, lowText + 0x1000, "eb10", "jmp 0x401012", "e90df0ffff", "jmp 0x401012", 0},
	{"jmp_rel32", lowText, lowText + 0x1000, "e900010000", "jmp 0x401105", "e900f1ffff", "jmp 0x401105", 0},
	{"jmp_to_the_region_itself", highText, highText + 0x1000, "ebfe", "jmp 0x7f0000001000", "e9fbefffff", "jmp 0x7f0000001000", 0},
	{"jmp_out_of_reach", lowText, highText, "e900010000", "jmp 0x401105", "ff2502000000cccc0511400000000000", "jmp *0x2(%rip) # 0x7f0000001008\nint3\nint3", 8},
	{"loop_rel8", lowText, lowText + 0x1000, "e210", "loop 0x401012", "e202eb05e909f0ffff", "loop 0x402004\njmp 0x402009\njmp 0x401012", 0},
	{"loopne_backward", lowText, lowText + 0x1000, "e0f0", "loopne 0x400ff2", "e002eb05e9e9efffff", "loopne 0x402004\njmp 0x402009\njmp 0x400ff2", 0},
	{"jrcxz", lowText, lowText + 0x1000, "e310", "jrcxz 0x401012", "e302eb05e909f0ffff", "jrcxz 0x402004\njmp 0x402009\njmp 0x401012", 0},
	{"jecxz_keeps_address_size", lowText, lowText + 0x1000, "67e310", "jecxz 0x401013", "67e302eb05e909f0ffff", "jecxz 0x402005\njmp 0x40200a\njmp 0x401013", 0},
	{"jrcxz_out_of_reach", lowText, highText, "e310", "jrcxz 0x401012", "e302eb14ff2506000000cccccccccccc1210400000000000", "jrcxz 0x7f0000001004\njmp 0x7f0000001018\njmp *0x6(%rip) # 0x7f0000001010\nint3\nint3\nint3\nint3\nint3\nint3", 8},
	{"loopz_keeps_its_prefix", lowText, lowText + 0x1000, "f2e110", "repnz loope 0x401013", "f2e102eb05e909f0ffff", "repnz loope 0x402005\njmp 0x40200a\njmp 0x401013", 0},
	{"xbegin", lowText, lowText + 0x1000, "c7f810000000", "xbegin 0x401016", "c7f810f0ffff", "xbegin 0x401016", 0},
	{"call_rel32_pushes_immediate", lowText, lowText + 0x1000, "e800010000", "call 0x401105", "6805104000e9fbf0ffff", "push $0x401005\njmp 0x401105", 0},
	{"call_rel32_pushes_literal", highText, highText + 0x1000, "e800010000", "call 0x7f0000001105", "ff350a000000e9faf0ffffcccccccccc05100000007f0000", "push 0xa(%rip) # 0x7f0000002010\njmp 0x7f0000001105\nint3\nint3\nint3\nint3\nint3", 8},
	{"call_rel32_out_of_reach", lowText, highText, "e800010000", "call 0x401105", "6805104000ff2505000000cccccccccc0511400000000000", "push $0x401005\njmp *0x5(%rip) # 0x7f0000001010\nint3\nint3\nint3\nint3\nint3", 8},
	{"call_rel32_tls_prefixes", highText, highText + 0x1000, "666648e800010000", "data16 data16 rex.W call 0x7f0000001108", "ff350a000000e9fdf0ffffcccccccccc08100000007f0000", "push 0xa(%rip) # 0x7f0000002010\njmp 0x7f0000001108\nint3\nint3\nint3\nint3\nint3", 8},
	{"call_next_is_a_push", lowText, lowText + 0x1000, "e800000000", "call 0x401005", "6805104000", "push $0x401005", 0},
	{"call_next_pic", highText, highText + 0x1000, "e800000000", "call 0x7f0000001005", "c74424f805100000c74424fc007f0000488d6424f8", "movl $0x1005,-0x8(%rsp)\nmovl $0x7f00,-0x4(%rsp)\nlea -0x8(%rsp),%rsp", 0},
	{"call_register", lowText, lowText + 0x1000, "ffd0", "call *%rax", "6802104000ffe0", "push $0x401002\njmp *%rax", 0},
	{"call_r12", highText, highText + 0x1000, "41ffd4", "call *%r12", "ff350a00000041ffe4cccccccccccccc03100000007f0000", "push 0xa(%rip) # 0x7f0000002010\njmp *%r12\nint3\nint3\nint3\nint3\nint3\nint3\nint3", 8},
	{"call_memory", highText, highText + 0x1000, "ff5018", "call *0x18(%rax)", "ff350a000000ff6018cccccccccccccc03100000007f0000", "push 0xa(%rip) # 0x7f0000002010\njmp *0x18(%rax)\nint3\nint3\nint3\nint3\nint3\nint3\nint3", 8},
	{"call_memory_rip_relative", lowText, lowText + 0x1000, "ff15fa0f0000", "call *0xffa(%rip) # 0x402000", "6806104000ff25f5ffffff", "push $0x401006\njmp *-0xb(%rip) # 0x402000", 0},
	{"call_memory_rip_relative_pic", highText, highText + 0x1000, "ff15fa0f0000", "call *0xffa(%rip) # 0x7f0000002000", "ff350a000000ff25f4ffffffcccccccc06100000007f0000", "push 0xa(%rip) # 0x7f0000002010\njmp *-0xc(%rip) # 0x7f0000002000\nint3\nint3\nint3\nint3", 8},
	{"call_memory_indexed", lowText, lowText + 0x1000, "ff14c500204000", "call *0x402000(,%rax,8)", "6807104000ff24c500204000", "push $0x401007\njmp *0x402000(,%rax,8)", 0},
	{"call_rsp_no_displacement", lowText, lowText + 0x1000, "ff1424", "call *(%rsp)", "6803104000ff642408", "push $0x401003\njmp *0x8(%rsp)", 0},
	{"call_rsp_disp8", lowText, lowText + 0x1000, "ff542408", "call *0x8(%rsp)", "6804104000ff642410", "push $0x401004\njmp *0x10(%rsp)", 0},
	{"call_rsp_disp8_grows", lowText, lowText + 0x1000, "ff542478", "call *0x78(%rsp)", "6804104000ffa42480000000", "push $0x401004\njmp *0x80(%rsp)", 0},
	{"call_rsp_disp8_to_zero", lowText, lowText + 0x1000, "ff5424f0", "call *-0x10(%rsp)", "6804104000ff6424f8", "push $0x401004\njmp *-0x8(%rsp)", 0},
	{"call_rsp_disp32", lowText, lowText + 0x1000, "ff942480000000", "call *0x80(%rsp)", "6807104000ffa42488000000", "push $0x401007\njmp *0x88(%rsp)", 0},
	{"call_rsp_indexed", lowText, lowText + 0x1000, "ff14c4", "call *(%rsp,%rax,8)", "6803104000ff64c408", "push $0x401003\njmp *0x8(%rsp,%rax,8)", 0},
	{"call_r12_base_is_not_rsp", lowText, lowText + 0x1000, "41ff1424", "call *(%r12)", "680410400041ff2424", "push $0x401004\njmp *(%r12)", 0},
	{"call_fs_memory", lowText, lowText + 0x1000, "64ff142510000000", "call *%fs:0x10", "680810400064ff242510000000", "push $0x401008\njmp *%fs:0x10", 0},
	{"call_notrack", lowText, lowText + 0x1000, "3effd0", "notrack call *%rax", "68031040003effe0", "push $0x401003\nnotrack jmp *%rax", 0},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func relocate(t testing.TB, code []byte, addr, to uint64, opt *RelocOptions) ([]byte, []AddrPair, error) {
	t.Helper()
	in, err := Decode(code)
	if err != nil {
		t.Fatal(err)
	}
	a := NewAsm(to)
	pairs, err := Relocate(a, &in, code, addr, opt)
	out, asmErr := a.Finish()
	if asmErr != nil {
		t.Fatal(asmErr)
	}
	return out, pairs, err
}

func TestRelocate(t *testing.T) {
	for _, c := range relocCases {
		t.Run(c.name, func(t *testing.T) {
			code := unhex(t, c.in)
			if got := strings.Join(objdump(t, code, fmt.Sprint(c.addr)), "\n"); got != c.text {
				t.Errorf("objdump reads the original as\n%s\nwant\n%s", got, c.text)
			}
			out, _, err := relocate(t, code, c.addr, c.to, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(out); got != c.out {
				t.Errorf("copy %s, want %s", got, c.out)
			}
			got := strings.Join(objdump(t, out[:len(out)-c.data], fmt.Sprint(c.to)), "\n")
			if got != c.want {
				t.Errorf("objdump reads the copy as\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestRelocateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		in     string
		to     uint64 // 0: near
		rule   error
		reason string
	}{
		"int3":                    {"cc", 0, ErrImmovable, "breakpoint"},
		"int1":                    {"f1", 0, ErrImmovable, "breakpoint"},
		"int_0x80":                {"cd80", 0, ErrImmovable, "software interrupt"},
		"iretq":                   {"48cf", 0, ErrImmovable, "far transfers"},
		"lret":                    {"cb", 0, ErrImmovable, "far transfers"},
		"far_jump_memory":         {"ff28", 0, ErrImmovable, "far transfers"},
		"far_call_memory":         {"48ff18", 0, ErrImmovable, "far transfers"},
		"hlt":                     {"f4", 0, ErrImmovable, "privileged"},
		"ud2":                     {"0f0b", 0, ErrImmovable, "never reached"},
		"sysenter":                {"0f34", 0, ErrImmovable, "only syscall"},
		"sysret":                  {"480f07", 0, ErrImmovable, "only syscall"},
		"operand_size_jmp":        {"66e900000000", 0, ErrImmovable, "operand-size prefix"},
		"operand_size_jcc":        {"667405", 0, ErrImmovable, "operand-size prefix"},
		"operand_size_call":       {"66ffd0", 0, ErrImmovable, "operand-size prefix"},
		"xbegin_rel16":            {"66c7f81000", 0, ErrImmovable, "two bytes"},
		"jmpabs":                  {"d500a10000000000000000", 0, ErrImmovable, "jmpabs"},
		"call_rsp":                {"ffd4", 0, ErrImmovable, "the stack pointer"},
		"call_pushed_slot":        {"ff5424f8", 0, ErrImmovable, "reads the place"},
		"call_into_pushed_slot":   {"ff5424f1", 0, ErrImmovable, "reads the place"},
		"call_rsp_displacement":   {"ff9424f9ffff7f", 0, ErrImmovable, "can not grow"},
		"rip_relative_too_far":    {"488b0500000000", lowText + 1<<31 + 1, ErrReach, "operand at 0x401007 is -2147483642 bytes from 0x80401001"},
		"call_memory_too_far":     {"ff1500000000", highText, ErrReach, "operand at 0x401006"},
		"xbegin_too_far":          {"c7f810000000", highText, ErrReach, "target at 0x401016"},
		"lea_of_32_bits_too_far":  {"8d0500000000", highText, ErrReach, "operand at 0x401006"},
		"evex_operand_too_far":    {"62f1fd486f0500000000", highText, ErrReach, "operand at 0x40100a"},
		"rex2_operand_too_far":    {"d5188b0500000000", highText, ErrReach, "operand at 0x401008"},
		"lock_on_a_branch":        {"f0ffd0", 0, ErrImmovable, "locked branch"},
		"uiret":                   {"f30f01ec", 0, ErrImmovable, "far transfers"},
		"rip_operand_before_imm8": {"803d0000000001", highText, ErrReach, "operand at 0x401007"},
	} {
		t.Run(name, func(t *testing.T) {
			code := unhex(t, c.in)
			to := c.to
			if to == 0 {
				to = lowText + 0x1000
			}
			out, pairs, err := relocate(t, code, lowText, to, nil)
			if !errors.Is(err, c.rule) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("error %v, want %v because of %q", err, c.rule, c.reason)
			}
			if len(out) != 0 || len(pairs) != 0 {
				t.Errorf("% x written, pairs %v", out, pairs)
			}
			var re *RelocError
			if !errors.As(err, &re) || !bytes.Equal(re.Code, code) {
				t.Errorf("error %#v does not hold the bytes", err)
			}
			in, _ := Decode(code)
			if err := Relocatable(&in, code); (err != nil) != (c.rule == ErrImmovable) {
				t.Errorf("Relocatable says %v", err)
			}
		})
	}
}

func TestRelocateReachesExactly(t *testing.T) {
	code := unhex(t, "488b0500000000") // mov 0x0(%rip),%rax
	for _, c := range []struct {
		to uint64
		ok bool
	}{
		{highText + 1<<31, true},
		{highText + 1<<31 + 1, false},
		{highText - 1<<31 + 1, true},
		{highText - 1<<31, false},
	} {
		_, _, err := relocate(t, code, highText, c.to, nil)
		if (err == nil) != c.ok {
			t.Errorf("to %#x: error %v, want success %v", c.to, err, c.ok)
		}
	}
}

func TestRelocateOptions(t *testing.T) {
	for name, c := range map[string]struct {
		in, out string
		opt     RelocOptions
	}{
		"ud2":            {"0f0b", "0f0b", RelocOptions{AllowUndef: true}},
		"real_call":      {"e8fb0f0000", "e8fbffffff", RelocOptions{RealCalls: true}},
		"real_call_rsp":  {"ffd4", "ffd4", RelocOptions{RealCalls: true}},
		"real_call_slot": {"ff5424f8", "ff5424f8", RelocOptions{RealCalls: true}},
		"real_call_rip":  {"ff15fa0f0000", "ff15faffffff", RelocOptions{RealCalls: true}},
		"real_call_next": {"e800000000", "6805104000", RelocOptions{RealCalls: true}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := relocate(t, unhex(t, c.in), lowText, lowText+0x1000, &c.opt)
			if got := hex.EncodeToString(out); err != nil || got != c.out {
				t.Errorf("copy %s, error %v, want %s", got, err, c.out)
			}
		})
	}
	_, _, err := relocate(t, unhex(t, "e800100000"), lowText, highText, &RelocOptions{RealCalls: true})
	if !errors.Is(err, ErrReach) {
		t.Errorf("real call too far away: %v", err)
	}
}

// TestRelocatePairs: a pair for each instruction of a copy, with the state it stands for.
func TestRelocatePairs(t *testing.T) {
	const low, high, to, far = lowText, highText, lowText + 0x1000, highText + 0x1000
	for name, c := range map[string]struct {
		addr, to uint64
		in       string
		want     []AddrPair
	}{
		"plain":    {low, to, "4889c8", []AddrPair{{low, to, to + 3, 0}}},
		"jcc":      {low, to, "7410", []AddrPair{{low, to, to + 6, 0}}},
		"jcc_far":  {low, high, "7410", []AddrPair{{low, high, high + 2, 0}, {low + 0x12, high + 2, high + 8, 0}}},
		"loop":     {low, to, "e210", []AddrPair{{low, to, to + 2, 0}, {low + 2, to + 2, to + 4, 0}, {low + 0x12, to + 4, to + 9, 0}}},
		"call":     {low, to, "e810000000", []AddrPair{{low, to, to + 5, 0}, {low + 0x15, to + 5, to + 10, 0}}},
		"call_pic": {high, far, "e810000000", []AddrPair{{high, far, far + 6, 0}, {high + 0x15, far + 6, far + 11, 0}}},
		"call_reg": {high, far, "ffd0", []AddrPair{{high, far, far + 6, 0}, {high, far + 6, far + 8, 8}}},
		"call_next_pic": {high, far, "e800000000", []AddrPair{
			{high, far, far + 8, 0},
			{high, far + 8, far + 16, 0},
			{high, far + 16, far + 21, 0},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, pairs, err := relocate(t, unhex(t, c.in), c.addr, c.to, nil)
			if err != nil || fmt.Sprint(pairs) != fmt.Sprint(c.want) {
				t.Errorf("pairs %x, error %v, want %x", pairs, err, c.want)
			}
		})
	}
}

// TestRelocateHostileInst: an Inst that does not describe its bytes is refused.
func TestRelocateHostileInst(t *testing.T) {
	for name, in := range map[string]Inst{
		"length_0":         {},
		"length_16":        {Len: 16},
		"longer_than_code": {Len: 4},
		"field_outside":    {Len: 3, RelOff: 0xff, RelLen: 4},
		"disp_outside":     {Len: 3, DispOff: 0xfc, DispLen: 8},
		"opcode_outside":   {Len: 3, OpOff: 3},
		"modrm_outside":    {Len: 3, HasModRM: true, ModRMOff: 3},
		"sib_outside":      {Len: 3, HasModRM: true, HasSIB: true, ModRMOff: 2},
		"rip_without_disp": {Len: 3, RIPMem: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAsm(0x1000)
			_, err := Relocate(a, &in, []byte{1, 2, 3}, 0x2000, nil)
			if !errors.Is(err, ErrImmovable) || a.Len() != 0 {
				t.Errorf("error %v, %d bytes written", err, a.Len())
			}
		})
	}
}

// FuzzCopies proves copies right by decoding them.
func FuzzCopies(f *testing.F) {
	for _, c := range relocCases {
		f.Add(unhex(f, c.in), c.addr, c.to)
	}
	f.Fuzz(func(t *testing.T, code []byte, addr, to uint64) {
		in, err := Decode(code)
		if err != nil {
			return
		}
		a := NewAsm(to)
		pairs, err := Relocate(a, &in, code, addr, nil)
		if (err == nil) != (len(pairs) > 0) || (err == nil) != (a.Len() > 0) {
			t.Fatalf("% x: %d pairs, %d bytes, error %v", code, len(pairs), a.Len(), err)
		}
		if err == nil {
			err = checkCopy(&in, code[:in.Len], addr, a.Bytes(), to, pairs)
		}
		if err != nil && !errors.Is(err, ErrImmovable) && !errors.Is(err, ErrReach) {
			t.Fatal(err)
		}
	})
}
