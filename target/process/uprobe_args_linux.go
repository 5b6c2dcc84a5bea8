package process

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// arg stores an argument, at offset slot in the stack, which is zero so far: a load that
// faults leaves 0, and so does a check that does not hold.
func (c *bpfCode) arg(a *fetch.Arg, addr uint64, slot int) error {
	switch a.Store {
	case fetch.StoreNone:
		return nil
	case fetch.StoreComm:
		c.pointer(1, slot)
		c.op(bpfSet64, 2, 0, 0, 16)
		c.call(bpfComm)
		return nil
	case fetch.StoreValue:
	default:
		return errno.Errorf(unix.EOPNOTSUPP, "argument %s (%s): a uprobe records no strings and no arrays", a.Name, a.Text)
	}
	if a.Base.Kind == fetch.BaseDepth {
		return errno.Errorf(unix.EOPNOTSUPP, "a uprobe does not know how deep on its stack a call is")
	}
	var faults []int
	for i := range a.Checks {
		k := &a.Checks[i]
		faults = append(faults, c.chain(k.Base, k.Derefs, 8, addr, slot)...)
		c.op(bpfLoad64, bpfResult, bpfFrame, slot, 0)
		c.op(bpfZero, bpfFrame, 0, slot, 0)
		c.constant(1, 0, k.Want)
		c.op(bpfXor64, bpfResult, 1, 0, 0)
		faults = append(faults, c.jump(bpfIfNot0))
	}
	faults = append(faults, c.chain(a.Base, a.Derefs, a.Size, addr, slot)...)
	for _, at := range faults {
		c.land(at)
	}
	return nil
}

// chain stores, at offset slot in the stack, which is zero so far, the size bytes that a base and its dereferences lead to. faults
// are the jumps of loads that fault: they leave 0.
func (c *bpfCode) chain(b fetch.Base, loads []int64, size int, addr uint64, slot int) (faults []int) {
	if b.Kind == fetch.BaseStack {
		loads = append([]int64{8 * int64(b.N)}, loads...)
	}
	c.base(3, b, addr)
	if len(loads) == 0 {
		c.narrow(3, size)
		c.op(bpfStore, bpfFrame, 3, slot, 0)
		return nil
	}
	for i, d := range loads {
		n := 8
		if i == len(loads)-1 {
			n = size
		}
		if i > 0 {
			c.op(bpfLoad64, 3, bpfFrame, slot, 0)
			c.op(bpfZero, bpfFrame, 0, slot, 0)
		}
		c.constant(1, 0, uint64(d))
		c.op(bpfAdd64, 3, 1, 0, 0)
		c.pointer(1, slot)
		c.op(bpfSet64, 2, 0, 0, int32(n))
		c.call(bpfUserMem)
		faults = append(faults, c.jump(bpfIfNot0))
	}
	return faults
}

// base loads what an argument starts from: for a word of the stack, the stack pointer.
func (c *bpfCode) base(reg uint8, b fetch.Base, addr uint64) {
	switch {
	case b.Kind == fetch.BaseStack:
		c.op(bpfLoad64, reg, bpfContext, ptRegs[ptSP], 0)
	case b.Kind != fetch.BaseReg, b.Reg == fetch.RegConst:
		c.constant(reg, 0, b.Imm)
	case b.Reg == fetch.RegIP:
		c.constant(reg, 0, addr)
	case b.Reg == fetch.RegFlags:
		c.op(bpfLoad64, reg, bpfContext, ptFlags, 0)
	default:
		c.op(bpfLoad64, reg, bpfContext, ptRegs[b.Reg&15], 0)
	}
}

// narrow cuts a value to its size.
func (c *bpfCode) narrow(reg uint8, size int) {
	switch size {
	case 1, 2:
		c.op(bpfAndImm, reg, 0, 0, int32(1)<<(8*size)-1)
	case 4:
		c.op(bpfMov32, reg, reg, 0, 0)
	}
}
