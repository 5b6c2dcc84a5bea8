package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/symbol"
)

// place is an instruction of a function, which runs once in each call.
type place struct {
	fn   string
	off  uint64
	addr uint64
}

// The bytes of a jump, and of a page: a jump is one store of the target's only within a page.
const (
	jumpSize = 5
	pageSize = 4096
)

// jumps tells whether a jump fits there. Where it would cross a page, as the linker has laid this
// program out, the probe stays a breakpoint, or shares a jump that stands before it.
func (p place) jumps() bool { return p.addr%pageSize+jumpSize <= pageSize }

func (p place) String() string { return fmt.Sprintf("%s+0x%x", p.fn, p.off) }

// code is one function's.
type code struct {
	addr uint64
	text []byte // as the file has it
}

var (
	all     []place
	refused int // instructions that no probe may stand at
	texts   [funcs]code
)

// places finds the instructions. Each is probed once, alone: where a leaf function leaves
// a detour no register to check the stack with, none may be.
func places(c *kprobes.Core) error {
	for i := range funcs {
		r, err := c.Target().Space().Resolve(symbol.Place{Sym: symbolOf(i)})
		if err != nil {
			return err
		}
		f := &texts[i]
		f.addr, f.text = r.Addr, make([]byte, r.Func.Size)
		if err := c.Target().Read(f.addr, f.text); err != nil {
			return err
		}
		offs, err := once(f.text)
		if err != nil {
			return fmt.Errorf("%s: %w", symbolOf(i), err)
		}
		for _, off := range offs {
			p := newProbe(place{symbolOf(i), off, f.addr + off}, true)
			p.k.PostHandler = nothing
			if err := c.RegisterKprobe(&p.k); errors.Is(err, unix.EOPNOTSUPP) {
				refused++
				continue
			} else if err != nil {
				return fmt.Errorf("%v: %w", p.at, err)
			}
			c.UnregisterKprobe(&p.k)
			all = append(all, p.at)
		}
	}
	return nil
}

// memory is what stands in the functions now.
func memory(c *kprobes.Core) (b []byte, err error) {
	for i := range texts {
		f := make([]byte, len(texts[i].text))
		if err := c.Target().Read(texts[i].addr, f); err != nil {
			return nil, err
		}
		b = append(b, f...)
	}
	return b, nil
}

// file is what stands there in the program's file.
func file() (b []byte) {
	for i := range texts {
		b = append(b, texts[i].text...)
	}
	return b
}
