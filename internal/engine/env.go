package engine

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// env is what the compilation of an event's arguments asks of the target.
type env struct {
	arch.ABI
	c     *Core
	m     *symbol.Module
	fn    *symbol.Func
	e     *Event
	at    uint64      // the point of a probe inside of fn
	names fetch.Namer // of fn, or of the point; nil before it was asked for
}

func (c *Core) env(e *Event) fetch.Env {
	fn, at := e.Place.Func, uint64(0)
	if e.Def.Kind != event.Return && len(e.points) > 0 {
		at = e.points[0]
	}
	return &env{e: e, at: at, ABI: c.t.Arch().ABI(fn.Lang == symbol.LangGo, fn.ABI0 || fn.Asm), c: c, m: e.Place.Module, fn: fn}
}

// Symbol gives the run-time address of @SYM: in the probed object first.
func (v *env) Symbol(name string) (uint64, error) {
	if s, err := v.m.Image.Data(name); err == nil {
		return v.m.Runtime(s.Addr), nil
	}
	_, addr, err := v.c.t.Space().Data("", name)
	return addr, err
}

// Addr takes an address inside a mapping as it is, and any other for a link-time address
// of the probed object.
func (v *env) Addr(a uint64) uint64 {
	if v.c.t.Space().ModuleAt(a) != nil {
		return a
	}
	return v.m.Runtime(a)
}

// File gives the address of a byte of the probed file, as far from the place as it is in the file (translate_user_vaddr in
// kernel/trace/trace_uprobe.c, Linux 6.18).
func (v *env) File(off int64) uint64 { return v.e.Place.Addr - v.e.Def.Place.Addr + uint64(off) }

// StoresComm says whether records of the target hold the thread's name.
func (v *env) StoresComm() bool {
	records := v.c.can.RecordsComm
	return records != nil && records()
}

// RefuseType says why a type can not be had: those of Go in a kernel.
func (v *env) RefuseType(t event.TypeKind) string {
	if v.c.t.CodegenEnv().Kernel == nil {
		return ""
	}
	return fetch.NoGoStrings(t)
}

// Selectors of a kernel's code and data (arch/x86/include/asm/segment.h).
const (
	kernelCS = 0x10
	kernelDS = 0x18
)

// Reg gives the base of a register; a kernel has selectors of its own.
func (v *env) Reg(name string) (fetch.Base, bool) {
	b, ok := v.ABI.Reg(name)
	switch {
	case v.c.t.CodegenEnv().Kernel == nil:
	case name == "cs":
		b.Imm = kernelCS
	case name == "ss":
		b.Imm = kernelDS
	}
	return b, ok
}
