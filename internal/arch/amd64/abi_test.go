package amd64

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/fetch"
)

func TestABIArgs(t *testing.T) {
	reg := func(r Reg) fetch.Base { return fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(r)} }
	word := func(n int) fetch.Base { return fetch.Base{Kind: fetch.BaseStack, N: n} }
	for _, c := range []struct {
		name          string
		goProgram     bool
		abi0          bool
		args, results []fetch.Base // those that follow are refused where refused says so
		refused       bool
	}{
		{
			"SysV", false, false,
			[]fetch.Base{reg(RDI), reg(RSI), reg(RDX), reg(RCX), reg(R8), reg(R9), word(1), word(2)},
			[]fetch.Base{reg(RAX), reg(RDX)},
			false,
		},
		{"SysV, assembly", false, true, []fetch.Base{reg(RDI)}, []fetch.Base{reg(RAX), reg(RDX)}, false},
		{
			"ABIInternal", true, false,
			[]fetch.Base{reg(RAX), reg(RBX), reg(RCX), reg(RDI), reg(RSI), reg(R8), reg(R9), reg(R10), reg(R11)},
			[]fetch.Base{reg(RAX), reg(RBX), reg(RCX), reg(RDI), reg(RSI), reg(R8), reg(R9), reg(R10), reg(R11)},
			true,
		},
		{"ABI0", true, true, []fetch.Base{word(1), word(2), word(3)}, nil, false},
	} {
		a := x86{}.ABI(c.goProgram, c.abi0)
		for i, want := range c.args {
			if got, err := a.Arg(i + 1); err != nil || got != want {
				t.Errorf("%s: argument %d is %+v, %v", c.name, i+1, got, err)
			}
		}
		for i, want := range c.results {
			if got, err := a.RetVal(i); err != nil || got != want {
				t.Errorf("%s: result %d is %+v, %v", c.name, i, got, err)
			}
		}
		if _, err := a.Arg(0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: argument 0: %v", c.name, err)
		}
		if _, err := a.Arg(len(c.args) + 1); errors.Is(err, unix.EINVAL) != c.refused {
			t.Errorf("%s: argument %d: %v", c.name, len(c.args)+1, err)
		}
		if _, err := a.RetVal(len(c.results)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: result %d: %v", c.name, len(c.results), err)
		}
	}
}

func TestABIRegisters(t *testing.T) {
	a := x86{}.ABI(false, false)
	for name, want := range map[string]Reg{
		"ax": RAX, "bx": RBX, "cx": RCX, "dx": RDX, "si": RSI, "di": RDI, "bp": RBP, "sp": RSP,
		"r8": R8, "r9": R9, "r10": R10, "r11": R11, "r12": R12, "r13": R13, "r14": R14, "r15": R15,
	} {
		if b, ok := a.Reg(name); !ok || b != (fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(want)}) {
			t.Errorf("%%%s is %+v, %v", name, b, ok)
		}
	}
	for name, want := range map[string]fetch.Base{
		"ip":      {Kind: fetch.BaseReg, Reg: fetch.RegIP},
		"flags":   {Kind: fetch.BaseReg, Reg: fetch.RegFlags},
		"cs":      {Kind: fetch.BaseReg, Reg: fetch.RegConst, Imm: 0x33},
		"ss":      {Kind: fetch.BaseReg, Reg: fetch.RegConst, Imm: 0x2b},
		"orig_ax": {Kind: fetch.BaseReg, Reg: fetch.RegConst, Imm: 1<<64 - 1},
	} {
		if b, ok := a.Reg(name); !ok || b != want {
			t.Errorf("%%%s is %+v, %v", name, b, ok)
		}
	}
	for _, name := range []string{"", "rax", "eax", "ex", "al", "r16", "r08", "none_reg", "ds"} {
		if b, ok := a.Reg(name); ok {
			t.Errorf("%%%s is %+v", name, b)
		}
	}
	if a.Stack() != (fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(RSP)}) {
		t.Errorf("$stack is %+v", a.Stack())
	}
}
