package kprobes

import (
	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/fetch"
	"kprobes.dev/kprobes/symbol"
)

// env is what the compilation of an event's arguments asks of the target.
type env struct {
	arch.ABI
	c *Core
	m *symbol.Module
}

func (c *Core) env(e *Event) fetch.Env {
	fn := e.Place.Func
	return &env{ABI: c.t.Arch().ABI(fn.Lang == symbol.LangGo, fn.ABI0 || fn.Asm), c: c, m: e.Place.Module}
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
