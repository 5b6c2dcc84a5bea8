package amd64

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asmForms is every form the emitter knows: bytes, text as objdump prints it, build.
var asmForms = []struct {
	hex, text string
	build     func(a *Asm)
}{
	{"4889c8", `mov %rcx,%rax`, func(a *Asm) { a.MovRR(8, RAX, RCX) }},
	{"4589c7", `mov %r8d,%r15d`, func(a *Asm) { a.MovRR(4, R15, R8) }},
	{"664189c1", `mov %ax,%r9w`, func(a *Asm) { a.MovRR(2, R9, RAX) }},
	{"4088f7", `mov %sil,%dil`, func(a *Asm) { a.MovRR(1, RDI, RSI) }},
	{"88c3", `mov %al,%bl`, func(a *Asm) { a.MovRR(1, RBX, RAX) }},
	{"488b08", `mov (%rax),%rcx`, func(a *Asm) { a.MovRM(8, RCX, At(RAX, 0)) }},
	{"488b4d00", `mov 0x0(%rbp),%rcx`, func(a *Asm) { a.MovRM(8, RCX, At(RBP, 0)) }},
	{"498b4d00", `mov 0x0(%r13),%rcx`, func(a *Asm) { a.MovRM(8, RCX, At(R13, 0)) }},
	{"488b0c24", `mov (%rsp),%rcx`, func(a *Asm) { a.MovRM(8, RCX, At(RSP, 0)) }},
	{"458ba42480000000", `mov 0x80(%r12),%r12d`, func(a *Asm) { a.MovRM(4, R12, At(R12, 128)) }},
	{"66448b4e80", `mov -0x80(%rsi),%r9w`, func(a *Asm) { a.MovRM(2, R9, At(RSI, -128)) }},
	{"408a74247f", `mov 0x7f(%rsp),%sil`, func(a *Asm) { a.MovRM(1, RSI, At(RSP, 127)) }},
	{"4b8b94da88a9cbed", `mov -0x12345678(%r10,%r11,8),%rdx`, func(a *Asm) { a.MovRM(8, RDX, AtIndex(R10, R11, 8, -0x12345678)) }},
	{"488b1408", `mov (%rax,%rcx,1),%rdx`, func(a *Asm) { a.MovRM(8, RDX, AtIndex(RAX, RCX, 1, 0)) }},
	{"4a8b546500", `mov 0x0(%rbp,%r12,2),%rdx`, func(a *Asm) { a.MovRM(8, RDX, AtIndex(RBP, R12, 2, 0)) }},
	{"4a8b148d40000000", `mov 0x40(,%r9,4),%rdx`, func(a *Asm) { a.MovRM(8, RDX, Mem{Kind: MemIndex, Index: R9, Scale: 4, Disp: 64}) }},
	{"64488b042510000000", `mov %fs:0x10,%rax`, func(a *Asm) { a.MovRM(8, RAX, AtFS(16)) }},
	{"64448b342560ffffff", `mov %fs:0xffffffffffffff60,%r14d`, func(a *Asm) { a.MovRM(4, R14, AtFS(-160)) }},
	{"65488b4708", `mov %gs:0x8(%rdi),%rax`, func(a *Asm) { a.MovRM(8, RAX, Mem{Seg: SegGS, Base: RDI, Disp: 8}) }},
	{"6448890425f8ffffff", `mov %rax,%fs:0xfffffffffffffff8`, func(a *Asm) { a.MovMR(8, AtFS(-8), RAX) }},
	{"40883b", `mov %dil,(%rbx)`, func(a *Asm) { a.MovMR(1, At(RBX, 0), RDI) }},
	{"6644894302", `mov %r8w,0x2(%rbx)`, func(a *Asm) { a.MovMR(2, At(RBX, 2), R8) }},
	{"41895104", `mov %edx,0x4(%r9)`, func(a *Asm) { a.MovMR(4, At(R9, 4), RDX) }},
	{"4c897c24f8", `mov %r15,-0x8(%rsp)`, func(a *Asm) { a.MovMR(8, At(RSP, -8), R15) }},
	{"c600ff", `movb $0xff,(%rax)`, func(a *Asm) { a.MovMI(1, At(RAX, 0), 255) }},
	{"66c7000080", `movw $0x8000,(%rax)`, func(a *Asm) { a.MovMI(2, At(RAX, 0), -0x8000) }},
	{"c7400800000080", `movl $0x80000000,0x8(%rax)`, func(a *Asm) { a.MovMI(4, At(RAX, 8), -0x80000000) }},
	{"49c74008ffffffff", `movq $0xffffffffffffffff,0x8(%r8)`, func(a *Asm) { a.MovMI(8, At(R8, 8), -1) }},
	{"b800000000", `mov $0x0,%eax`, func(a *Asm) { a.MovRI(RAX, 0) }},
	{"41b9ffffffff", `mov $0xffffffff,%r9d`, func(a *Asm) { a.MovRI(R9, 0xffffffff) }},
	{"48c7c700000080", `mov $0xffffffff80000000,%rdi`, func(a *Asm) { a.MovRI(RDI, 0xffffffff80000000) }},
	{"49c7c4ffffffff", `mov $0xffffffffffffffff,%r12`, func(a *Asm) { a.MovRI(R12, 1<<64-1) }},
	{"48bbffffff7fffffffff", `movabs $0xffffffff7fffffff,%rbx`, func(a *Asm) { a.MovRI(RBX, 0xffffffff7fffffff) }},
	{"49ba0000000001000000", `movabs $0x100000000,%r10`, func(a *Asm) { a.MovRI(R10, 1<<32) }},
	{"0fb608", `movzbl (%rax),%ecx`, func(a *Asm) { a.MovZXM(1, RCX, At(RAX, 0)) }},
	{"450fb74804", `movzwl 0x4(%r8),%r9d`, func(a *Asm) { a.MovZXM(2, R9, At(R8, 4)) }},
	{"8b30", `mov (%rax),%esi`, func(a *Asm) { a.MovZXM(4, RSI, At(RAX, 0)) }},
	{"488b30", `mov (%rax),%rsi`, func(a *Asm) { a.MovZXM(8, RSI, At(RAX, 0)) }},
	{"480fbe08", `movsbq (%rax),%rcx`, func(a *Asm) { a.MovSXM(1, RCX, At(RAX, 0)) }},
	{"4c0fbf00", `movswq (%rax),%r8`, func(a *Asm) { a.MovSXM(2, R8, At(RAX, 0)) }},
	{"486308", `movslq (%rax),%rcx`, func(a *Asm) { a.MovSXM(4, RCX, At(RAX, 0)) }},
	{"498b0f", `mov (%r15),%rcx`, func(a *Asm) { a.MovSXM(8, RCX, At(R15, 0)) }},
	{"400fb6c6", `movzbl %sil,%eax`, func(a *Asm) { a.MovZXR(1, RAX, RSI) }},
	{"410fb7c1", `movzwl %r9w,%eax`, func(a *Asm) { a.MovZXR(2, RAX, R9) }},
	{"89c9", `mov %ecx,%ecx`, func(a *Asm) { a.MovZXR(4, RCX, RCX) }},
	{"4889d1", `mov %rdx,%rcx`, func(a *Asm) { a.MovZXR(8, RCX, RDX) }},
	{"4c0fbec7", `movsbq %dil,%r8`, func(a *Asm) { a.MovSXR(1, R8, RDI) }},
	{"480fbfd0", `movswq %ax,%rdx`, func(a *Asm) { a.MovSXR(2, RDX, RAX) }},
	{"4963c2", `movslq %r10d,%rax`, func(a *Asm) { a.MovSXR(4, RAX, R10) }},
	{"4889d8", `mov %rbx,%rax`, func(a *Asm) { a.MovSXR(8, RAX, RBX) }},
	{"488d642480", `lea -0x80(%rsp),%rsp`, func(a *Asm) { a.Lea(RSP, At(RSP, -128)) }},
	{"4c8d5c8001", `lea 0x1(%rax,%rax,4),%r11`, func(a *Asm) { a.Lea(R11, AtIndex(RAX, RAX, 4, 1)) }},
	{"4801c8", `add %rcx,%rax`, func(a *Asm) { a.OpRR(OpAdd, 8, RAX, RCX) }},
	{"4409c8", `or %r9d,%eax`, func(a *Asm) { a.OpRR(OpOr, 4, RAX, R9) }},
	{"664111d0", `adc %dx,%r8w`, func(a *Asm) { a.OpRR(OpAdc, 2, R8, RDX) }},
	{"4018f5", `sbb %sil,%bpl`, func(a *Asm) { a.OpRR(OpSbb, 1, RBP, RSI) }},
	{"482307", `and (%rdi),%rax`, func(a *Asm) { a.OpRM(OpAnd, 8, RAX, At(RDI, 0)) }},
	{"403a7708", `cmp 0x8(%rdi),%sil`, func(a *Asm) { a.OpRM(OpCmp, 1, RSI, At(RDI, 8)) }},
	{"482907", `sub %rax,(%rdi)`, func(a *Asm) { a.OpMR(OpSub, 8, At(RDI, 0), RAX) }},
	{"4530442401", `xor %r8b,0x1(%r12)`, func(a *Asm) { a.OpMR(OpXor, 1, At(R12, 1), R8) }},
	{"4883fa7f", `cmp $0x7f,%rdx`, func(a *Asm) { a.OpRI(OpCmp, 8, RDX, 127) }},
	{"4881c280000000", `add $0x80,%rdx`, func(a *Asm) { a.OpRI(OpAdd, 8, RDX, 128) }},
	{"80c07f", `add $0x7f,%al`, func(a *Asm) { a.OpRI(OpAdd, 1, RAX, 127) }},
	{"664181e1f0ff", `and $0xfff0,%r9w`, func(a *Asm) { a.OpRI(OpAnd, 2, R9, 0xfff0) }},
	{"4080fef0", `cmp $0xf0,%sil`, func(a *Asm) { a.OpRI(OpCmp, 1, RSI, 0xf0) }},
	{"4883e4c0", `and $0xffffffffffffffc0,%rsp`, func(a *Asm) { a.OpRI(OpAnd, 8, RSP, -64) }},
	{"48830001", `addq $0x1,(%rax)`, func(a *Asm) { a.OpMI(OpAdd, 8, At(RAX, 0), 1) }},
	{"64813c251000000078563412", `cmpl $0x12345678,%fs:0x10`, func(a *Asm) { a.OpMI(OpCmp, 4, AtFS(16), 0x12345678) }},
	{"80790380", `cmpb $0x80,0x3(%rcx)`, func(a *Asm) { a.OpMI(OpCmp, 1, At(RCX, 3), 128) }},
	{"6641810b3412", `orw $0x1234,(%r11)`, func(a *Asm) { a.OpMI(OpOr, 2, At(R11, 0), 0x1234) }},
	{"f0830001", `lock addl $0x1,(%rax)`, func(a *Asm) { a.Lock().OpMI(OpAdd, 4, At(RAX, 0), 1) }},
	{"4885c0", `test %rax,%rax`, func(a *Asm) { a.TestRR(8, RAX, RAX) }},
	{"4184f8", `test %dil,%r8b`, func(a *Asm) { a.TestRR(1, R8, RDI) }},
	{"f6c101", `test $0x1,%cl`, func(a *Asm) { a.TestRI(1, RCX, 1) }},
	{"48f7c3f0ffffff", `test $0xfffffffffffffff0,%rbx`, func(a *Asm) { a.TestRI(8, RBX, -16) }},
	{"f6460704", `testb $0x4,0x7(%rsi)`, func(a *Asm) { a.TestMI(1, At(RSI, 7), 4) }},
	{"41f70600010000", `testl $0x100,(%r14)`, func(a *Asm) { a.TestMI(4, At(R14, 0), 256) }},
	{"49ffc1", `inc %r9`, func(a *Asm) { a.IncR(8, R9) }},
	{"48ff4008", `incq 0x8(%rax)`, func(a *Asm) { a.IncM(8, At(RAX, 8)) }},
	{"f048ff04c8", `lock incq (%rax,%rcx,8)`, func(a *Asm) { a.Lock().IncM(8, AtIndex(RAX, RCX, 8, 0)) }},
	{"6549ff02", `incq %gs:(%r10)`, func(a *Asm) { a.IncM(8, Mem{Seg: SegGS, Base: R10}) }},
	{"ffce", `dec %esi`, func(a *Asm) { a.DecR(4, RSI) }},
	{"f066ff0b", `lock decw (%rbx)`, func(a *Asm) { a.Lock().DecM(2, At(RBX, 0)) }},
	{"fe0b", `decb (%rbx)`, func(a *Asm) { a.DecM(1, At(RBX, 0)) }},
	{"48f7df", `neg %rdi`, func(a *Asm) { a.NegR(8, RDI) }},
	{"41f7d0", `not %r8d`, func(a *Asm) { a.NotR(4, R8) }},
	{"48c1ca3f", `ror $0x3f,%rdx`, func(a *Asm) { a.ShiftRI(Ror, 8, RDX, 63) }},
	{"48c1e006", `shl $0x6,%rax`, func(a *Asm) { a.ShiftRI(Shl, 8, RAX, 6) }},
	{"41c1e91f", `shr $0x1f,%r9d`, func(a *Asm) { a.ShiftRI(Shr, 4, R9, 31) }},
	{"40c0fd07", `sar $0x7,%bpl`, func(a *Asm) { a.ShiftRI(Sar, 1, RBP, 7) }},
	{"48d3e2", `shl %cl,%rdx`, func(a *Asm) { a.ShiftRCL(Shl, 8, RDX) }},
	{"490fbcc1", `bsf %r9,%rax`, func(a *Asm) { a.Bsf(8, RAX, R9) }},
	{"490fafc1", `imul %r9,%rax`, func(a *Asm) { a.ImulRR(8, RAX, R9) }},
	{"486bd138", `imul $0x38,%rcx,%rdx`, func(a *Asm) { a.ImulRRI(8, RDX, RCX, 56) }},
	{"4569c445230100", `imul $0x12345,%r12d,%r8d`, func(a *Asm) { a.ImulRRI(4, R8, R12, 0x12345) }},
	{"480fb10a", `cmpxchg %rcx,(%rdx)`, func(a *Asm) { a.Cmpxchg(8, At(RDX, 0), RCX) }},
	{"f04c0fb14f40", `lock cmpxchg %r9,0x40(%rdi)`, func(a *Asm) { a.Lock().Cmpxchg(8, At(RDI, 64), R9) }},
	{"400fb030", `cmpxchg %sil,(%rax)`, func(a *Asm) { a.Cmpxchg(1, At(RAX, 0), RSI) }},
	{"f0410fc100", `lock xadd %eax,(%r8)`, func(a *Asm) { a.Lock().Xadd(4, At(R8, 0), RAX) }},
	{"480fc11c24", `xadd %rbx,(%rsp)`, func(a *Asm) { a.Xadd(8, At(RSP, 0), RBX) }},
	{"488701", `xchg %rax,(%rcx)`, func(a *Asm) { a.XchgMR(8, At(RCX, 0), RAX) }},
	{"4887cb", `xchg %rcx,%rbx`, func(a *Asm) { a.XchgRR(8, RBX, RCX) }},
	{"0f90c0", `seto %al`, func(a *Asm) { a.Setcc(CondO, RAX) }},
	{"400f95c7", `setne %dil`, func(a *Asm) { a.Setcc(CondNE, RDI) }},
	{"490f42c1", `cmovb %r9,%rax`, func(a *Asm) { a.CmovRR(CondB, 8, RAX, R9) }},
	{"55", `push %rbp`, func(a *Asm) { a.Push(RBP) }},
	{"4154", `push %r12`, func(a *Asm) { a.Push(R12) }},
	{"58", `pop %rax`, func(a *Asm) { a.Pop(RAX) }},
	{"415f", `pop %r15`, func(a *Asm) { a.Pop(R15) }},
	{"ff742408", `push 0x8(%rsp)`, func(a *Asm) { a.PushM(At(RSP, 8)) }},
	{"648f042508000000", `pop %fs:0x8`, func(a *Asm) { a.PopM(AtFS(8)) }},
	{"6a80", `push $0xffffffffffffff80`, func(a *Asm) { a.PushI(-128) }},
	{"6800104000", `push $0x401000`, func(a *Asm) { a.PushI(0x401000) }},
	{"9c", `pushf`, func(a *Asm) { a.Pushfq() }},
	{"9d", `popf`, func(a *Asm) { a.Popfq() }},
	{"9f", `lahf`, func(a *Asm) { a.Lahf() }},
	{"9e", `sahf`, func(a *Asm) { a.Sahf() }},
	{"fc", `cld`, func(a *Asm) { a.Cld() }},
	{"ffe0", `jmp *%rax`, func(a *Asm) { a.JmpR(RAX) }},
	{"41ffe3", `jmp *%r11`, func(a *Asm) { a.JmpR(R11) }},
	{"ff642410", `jmp *0x10(%rsp)`, func(a *Asm) { a.JmpM(At(RSP, 16)) }},
	{"41ffd4", `call *%r12`, func(a *Asm) { a.CallR(R12) }},
	{"ff14d8", `call *(%rax,%rbx,8)`, func(a *Asm) { a.CallM(AtIndex(RAX, RBX, 8, 0)) }},
	{"64ff142528000000", `call *%fs:0x28`, func(a *Asm) { a.CallM(AtFS(40)) }},
	{"c3", `ret`, func(a *Asm) { a.Ret() }},
	{"cc", `int3`, func(a *Asm) { a.Int3() }},
	{"0f0b", `ud2`, func(a *Asm) { a.Ud2() }},
	{"0f05", `syscall`, func(a *Asm) { a.Syscall() }},
	{"0f31", `rdtsc`, func(a *Asm) { a.Rdtsc() }},
	{"0f01f9", `rdtscp`, func(a *Asm) { a.Rdtscp() }},
	{"f30fc7fa", `rdpid %rdx`, func(a *Asm) { a.Rdpid(RDX) }},
	{"f3410fc7f9", `rdpid %r9`, func(a *Asm) { a.Rdpid(R9) }},
	{"f390", `pause`, func(a *Asm) { a.Pause() }},
	{"0faee8", `lfence`, func(a *Asm) { a.Lfence() }},
	{"0faef0", `mfence`, func(a *Asm) { a.Mfence() }},
	{"90", `nop`, func(a *Asm) { a.Nop(1) }},
	{"6690", `xchg %ax,%ax`, func(a *Asm) { a.Nop(2) }},
	{"0f1f00", `nopl (%rax)`, func(a *Asm) { a.Nop(3) }},
	{"0f1f4000", `nopl 0x0(%rax)`, func(a *Asm) { a.Nop(4) }},
	{"0f1f440000", `nopl 0x0(%rax,%rax,1)`, func(a *Asm) { a.Nop(5) }},
	{"660f1f440000", `nopw 0x0(%rax,%rax,1)`, func(a *Asm) { a.Nop(6) }},
	{"0f1f8000000000", `nopl 0x0(%rax)`, func(a *Asm) { a.Nop(7) }},
	{"0f1f840000000000", `nopl 0x0(%rax,%rax,1)`, func(a *Asm) { a.Nop(8) }},
	{"660f1f840000000000", `nopw 0x0(%rax,%rax,1)`, func(a *Asm) { a.Nop(9) }},
}

// objdump disassembles code at base and gives the text of each line, address comments
// left out and blanks made single.
func objdump(t *testing.T, code []byte, base string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("objdump", "-D", "-w", "--no-show-raw-insn", "-b", "binary", "-m", "i386:x86-64", "--adjust-vma="+base, file)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("objdump (package binutils) is needed: %v", err)
	}
	var text []string
	for line := range strings.Lines(string(out)) {
		if addr, rest, ok := strings.Cut(line, ":\t"); ok && strings.Trim(addr, " 0123456789abcdef") == "" {
			text = append(text, strings.Join(strings.Fields(rest), " "))
		}
	}
	return text
}

func TestAsmForms(t *testing.T) {
	var all []byte
	for _, f := range asmForms {
		a := NewAsm(0x400000)
		f.build(a)
		code, err := a.Finish()
		if err != nil {
			t.Errorf("%s: %v", f.text, err)
		}
		if got := hex.EncodeToString(code); got != f.hex {
			t.Errorf("%s: code %s, want %s", f.text, got, f.hex)
		}
		all = append(all, code...)
	}
	got := objdump(t, all, "0x400000")
	if len(got) != len(asmForms) {
		t.Fatalf("objdump sees %d instructions, want %d", len(got), len(asmForms))
	}
	for i, f := range asmForms {
		if got[i] != f.text {
			t.Errorf("objdump reads %s as %q, want %q", f.hex, got[i], f.text)
		}
	}
}

func TestAsmPlaces(t *testing.T) {
	a := NewAsm(0x7f0000001000)
	back, fwd, data := a.Here(), a.Label(), a.Label()
	a.Jmp(fwd)
	a.JmpShort(fwd)
	a.Jcc(CondE, back)
	a.JccShort(CondNE, back)
	a.Jrcxz(fwd)
	a.Call(back)
	a.JmpAddr(0x7f0000000000)
	a.JccAddr(CondG, 0x7f0080000000)
	a.CallAddr(0x7eff80002000)
	a.Lea(RAX, AtLabel(data, 0))
	a.MovMI(4, AtLabel(data, 4), 7)
	a.OpMI(OpCmp, 8, AtAddr(0x7f0000000ff8), 1)
	a.MovMI(2, AtAddr(0x7f0000000ff8), 1)
	a.MovRM(8, R9, AtAddr(0x7f0000000ff8))
	a.JmpM(AtLabel(data, 8))
	a.Bind(fwd)
	a.PushAddr(0x7f0012345678)
	a.PushAddr(0xffffffff80000000)
	a.PushAddr(0x80000000)
	text := []string{
		"jmp 0x7f0000001055",
		"jmp 0x7f0000001055",
		"je 0x7f0000001000",
		"jne 0x7f0000001000",
		"jrcxz 0x7f0000001055",
		"call 0x7f0000001000",
		"jmp 0x7f0000000000",
		"jg 0x7f0080000000",
		"call 0x7eff80002000",
		"lea 0x53(%rip),%rax # 0x7f0000001080",
		"movl $0x7,0x4d(%rip) # 0x7f0000001084",
		"cmpq $0x1,-0x47(%rip) # 0x7f0000000ff8",
		"movw $0x1,-0x50(%rip) # 0x7f0000000ff8",
		"mov -0x57(%rip),%r9 # 0x7f0000000ff8",
		"jmp *0x33(%rip) # 0x7f0000001088",
		"push $0x12345678",
		"movl $0x7f00,0x4(%rsp)",
		"push $0xffffffff80000000",
		"push $0xffffffff80000000",
		"movl $0x0,0x4(%rsp)",
	}
	code := bytes.Clone(a.Bytes())
	a.Align(16)
	a.Bind(data)
	a.DataAddr(fwd)
	a.DataDiff(fwd, back)
	a.Data32(0x53053053)
	want := "55100000007f0000" + "5500000000000000" + "53300553"
	all, err := a.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if got := a.LabelAddr(data); got != 0x7f0000001080 {
		t.Errorf("address of data %#x", got)
	}
	if got := hex.EncodeToString(all[a.LabelAddr(data)-a.Base():]); got != want {
		t.Errorf("data %s, want %s", got, want)
	}
	got := objdump(t, all[:len(code)], "0x7f0000001000")
	if strings.Join(got, "\n") != strings.Join(text, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(text, "\n"))
	}
}

func TestAsmJmpFar(t *testing.T) {
	a := NewAsm(0x1000)
	a.JmpFar(0x7f0123456789)
	if got, want := hex.EncodeToString(a.Bytes()), "ff250000000089674523017f0000"; got != want {
		t.Errorf("code %s, want %s", got, want)
	}
}

func TestAsmAlign(t *testing.T) {
	for base := range uint64(64) {
		a := NewAsm(0x1000 + base)
		a.Align(64)
		if a.Addr()%64 != 0 || a.Len() > 63 {
			t.Errorf("from %#x: %d bytes to %#x", base, a.Len(), a.Addr())
		}
	}
}

func TestAsmErrors(t *testing.T) {
	for name, c := range map[string]struct {
		build func(a *Asm)
		reach bool
		text  string
	}{
		"address_too_far": {func(a *Asm) { a.JmpAddr(0x80001006) }, true, "0x80001006 is 2147483649 bytes away"},
		"operand_too_far": {func(a *Asm) { a.MovRM(8, RAX, AtAddr(1<<40)) }, true, "operand at 0x10000000000"},
		"short_too_far": {func(a *Asm) {
			l := a.Label()
			a.JmpShort(l)
			a.Nop(128)
			a.Bind(l)
		}, true, "short branch"},
		"never_bound":      {func(a *Asm) { a.Jmp(a.Label()) }, false, "label 0 used at 0x1001 and never bound"},
		"bound_twice":      {func(a *Asm) { a.Bind(a.Here()) }, false, "bound twice"},
		"foreign_label":    {func(a *Asm) { a.Jmp(7) }, false, "label 7 is not of this code"},
		"address_unbound":  {func(a *Asm) { a.LabelAddr(a.Label()) }, false, "before it is bound"},
		"size":             {func(a *Asm) { a.MovRM(3, RAX, At(RAX, 0)) }, false, "operand size 3"},
		"scale":            {func(a *Asm) { a.Lea(RAX, AtIndex(RAX, RCX, 3, 0)) }, false, "scale 3"},
		"rsp_as_index":     {func(a *Asm) { a.Lea(RAX, AtIndex(RAX, RSP, 1, 0)) }, false, "index"},
		"index_unscaled":   {func(a *Asm) { a.Lea(RAX, Mem{Kind: MemIndex, Index: RAX}) }, false, "index"},
		"register":         {func(a *Asm) { a.Lea(RAX, At(16, 0)) }, false, "impossible"},
		"immediate_byte":   {func(a *Asm) { a.OpRI(OpAdd, 1, RAX, 256) }, false, "immediate 256 does not fit 1 bytes"},
		"immediate_word":   {func(a *Asm) { a.MovMI(2, At(RAX, 0), 1<<16) }, false, "does not fit 2 bytes"},
		"shift":            {func(a *Asm) { a.ShiftRI(Shl, 4, RAX, 32) }, false, "shift by 32 bits"},
		"no_byte_form":     {func(a *Asm) { a.ImulRR(1, RAX, RCX) }, false, "no byte form"},
		"alignment":        {func(a *Asm) { a.Align(24) }, false, "no power of two"},
		"two_errors_later": {func(a *Asm) { a.Align(3); a.Align(5) }, false, "alignment of 5"},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAsm(0x1000)
			c.build(a)
			_, err := a.Finish()
			if err == nil || errors.Is(err, ErrReach) != c.reach || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %q, reach %v", err, c.text, c.reach)
			}
		})
	}
}
