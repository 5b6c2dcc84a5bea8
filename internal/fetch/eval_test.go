package fetch

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// paged is the test's machine with memory in pages, as a CPU has it: where machine ends with the last byte that it holds,
// the rest of the page is there too, and is 0.
type paged struct {
	m    *machine
	user map[uint64]bool // addresses that were asked for as a user's
}

func (p *paged) Reg(r Reg) uint64 { return p.m.regs[r] }

func (p *paged) Stack(n int) (uint64, bool) {
	if n > 2 {
		return 0, false
	}
	return p.m.base(Base{Kind: BaseStack, N: n}), true
}

func (p *paged) Load(addr uint64, b []byte, user bool) bool {
	if user {
		p.user[addr] = true
	}
	for i := range b {
		at := addr + uint64(i)
		there := false
		for a := range p.m.mem {
			there = there || a>>12 == at>>12
		}
		if !there {
			return false
		}
		b[i] = p.m.mem[at]
	}
	return true
}

// TestEval compares with the machine that follows the comment at Arg.
func TestEval(t *testing.T) {
	for _, line := range []string{
		"p f",
		"p f %r0 %r1:s8 %r2:x16 %r3:u32 %ip:symbol %seg \\5",
		"p f +0(%r0) +8(%r0):u8 +0(+8(%r0)):u32 +8(+0(+0(%r4))):u16",
		"p f +0(%r3) +0(+0(%r3)):u32 @counter @0x2008:u16",
		"p f s=+0(%r2):string t=+6(%r2):string",
		"p f s=+0(%r3):string t=+0(+8(%r4)):string",
		"p f a=+0(%r0):u8[4] b=+0(%r4):string[3] c=+0(%r3):u32[2]",
		"p f $stack $stack0 $stack1 $stack2",
		"p f $comm \\\"text\" g=+0(%r7):gostring h=+0x10(%r7):gostring",
		"p f x=+u0(%r2):string y=+0(%r2):ustring z=+u8(+u0(%r4)):x64",
	} {
		p := compile(t, line, PointInside)
		want := newMachine().record(p, 24)
		m := &paged{newMachine(), map[uint64]bool{}}
		got := p.Eval(m, make([]byte, 24), 4096)
		a, err := p.Decode(want, 24, "me")
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Decode(got, 24, "me")
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if d := cmp.Diff(AppendValues(nil, a, nil), AppendValues(nil, b, nil)); d != "" {
			t.Errorf("%s: %s", line, d)
		}
	}
}

func TestEvalUser(t *testing.T) {
	m := &paged{newMachine(), map[uint64]bool{}}
	compile(t, "p f +0(+u8(%r0)):u8 +0(%r2):string b=+0(%r4):ustring[1]", PointInside).Eval(m, nil, 4096)
	if want := map[uint64]bool{0x1008: true, 0x3000: true}; !cmp.Equal(m.user, want) {
		t.Errorf("asked of the user: %v, want %v", m.user, want)
	}
}

// TestEvalLimit has strings that do not fit.
func TestEvalLimit(t *testing.T) {
	m := &paged{newMachine(), map[uint64]bool{}}
	m.m.put(0x9000, append(bytes.Repeat([]byte("x"), 5000), 0)...)
	m.m.regs[2] = 0x9000
	p := compile(t, "p f a=+0(%r2):string b=+0(%r2):string", PointInside)
	rec := p.Eval(m, make([]byte, 16), 256)
	if len(rec) > 256 {
		t.Errorf("%d bytes", len(rec))
	}
	vs, err := p.Decode(rec, 16, "")
	if err != nil || len(vs[0].Str) != 256-32-1 || !vs[1].Fault {
		t.Errorf("%v: %d bytes, fault %v", err, len(vs[0].Str), vs[1].Fault)
	}
}

// TestEvalChecks has an argument whose value is there only where its checks hold.
func TestEvalChecks(t *testing.T) {
	m := &paged{newMachine(), map[uint64]bool{}}
	m.m.regs[1] = 0
	m.m.word(0x9000, 0x9100)
	m.m.word(0x9108, 0x1234)
	direct, table := Check{Base: Base{Kind: BaseImm, Imm: 0x1234}, Want: 0x1234}, Check{Base: Base{Kind: BaseImm, Imm: 0x9000}, Derefs: []int64{0, 8}, Want: 0x1234}
	other, none, bad := table, table, table
	other.Want, none.Base, bad.Base = 0x1235, reg(1), Base{Kind: BaseImm, Imm: 0xdead0000}
	for _, c := range []struct {
		name   string
		checks []Check
		holds  bool
	}{
		{"none", nil, true},
		{"eface", []Check{direct}, true},
		{"iface", []Check{table}, true},
		{"both", []Check{direct, table}, true},
		{"another type", []Check{direct, other}, false},
		{"nil", []Check{none}, false},
		{"bad pointer", []Check{bad, direct}, false},
	} {
		p := compile(t, "p f \\7 s=+0(%r2):string g=+0(%r7):gostring a=+0(%r0):u8[2]", PointInside)
		for i := range p.Args {
			p.Args[i].Checks = c.checks
		}
		vs, err := p.Decode(p.Eval(m, make([]byte, 16), 4096), 16, "")
		if err != nil {
			t.Fatal(err)
		}
		if c.holds != (vs[0].Num == 7) || c.holds == vs[1].Fault || c.holds == vs[2].Fault || c.holds != (vs[3].Elems[0].Num != 0) {
			t.Errorf("%s: %s", c.name, AppendValues(nil, vs, nil))
		}
	}
}
