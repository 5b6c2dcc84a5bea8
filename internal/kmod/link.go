package kmod

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// pageSize is what parts are multiples of, in bytes.
const pageSize = 4096

// Layout says how much memory the parts of a module take, and where in them everything lies.
type Layout struct {
	Size [Parts]uint64 // bytes, a multiple of 4096; 0: there is no such part. Of PerCPU: of one CPU's copy

	o       *Object
	off     map[*section]uint64 // in their parts
	veneers map[int]uint64      // by symbol: in Text
	slots   map[int]uint64      // by symbol: in Rodata
	texts   uint64              // of parameters: in Data
}

// Layout places the sections of an object, and has room for the values of parameters.
func (o *Object) Layout(params []Param) *Layout {
	l := &Layout{o: o, off: map[*section]uint64{}, veneers: map[int]uint64{}, slots: map[int]uint64{}}
	for _, s := range o.sections {
		l.off[s] = align(l.Size[s.part], s.align)
		l.Size[s.part] = l.off[s] + s.size
	}
	veneer := uint64(len(o.machine.Veneer(0)))
	take := func(m map[int]uint64, symbol int, part Part, size, alignment uint64) {
		if _, ok := m[symbol]; ok {
			return
		}
		m[symbol] = align(l.Size[part], alignment)
		l.Size[part] = m[symbol] + size
	}
	for _, r := range o.relocs {
		switch far := !o.symbols[r.symbol].defined; {
		case r.Value == objfile.LinkSlot:
			take(l.slots, r.symbol, Rodata, 8, 8)
		case far && r.Value == objfile.LinkCall:
			take(l.veneers, r.symbol, Text, veneer, 16)
		}
	}
	l.texts = l.Size[Data]
	for _, p := range params {
		l.Size[Data] += uint64(len(p.Value)) + 1
	}
	for p := range l.Size {
		l.Size[p] = align(l.Size[p], pageSize)
	}
	return l
}

func align(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

// Image is a module as it stands in memory.
type Image struct {
	At    [Parts]uint64
	Bytes [Parts][]byte // as Layout.Size

	o    *Object
	addr []uint64 // of the symbols
}

// Link makes the bytes of a module whose parts lie at addresses, multiples of 4096. resolve gives the addresses of names that the object has not.
// The errors wrap ErrObject: a name is unknown, or out of reach.
func (l *Layout) Link(at [Parts]uint64, resolve func(name string) (addr uint64, ok bool)) (*Image, error) {
	o := l.o
	im := &Image{At: at, o: o, addr: make([]uint64, len(o.symbols))}
	for p := range im.Bytes {
		im.Bytes[p] = make([]byte, l.Size[p])
	}
	for _, s := range o.sections {
		copy(im.Bytes[s.part][l.off[s]:], s.data)
	}
	if err := im.resolve(l, resolve); err != nil {
		return nil, err
	}
	for symbol, off := range l.veneers {
		copy(im.Bytes[Text][off:], o.machine.Veneer(im.addr[symbol]))
	}
	for symbol, off := range l.slots {
		binary.LittleEndian.PutUint64(im.Bytes[Rodata][off:], im.addr[symbol])
	}
	for i := range o.relocs {
		if err := im.relocate(l, &o.relocs[i]); err != nil {
			return nil, err
		}
	}
	return im, nil
}

// resolve finds the addresses of all symbols.
func (im *Image) resolve(l *Layout, outside func(name string) (uint64, bool)) error {
	unknown := im.o.Undefined()
	for i := range im.o.symbols {
		s := &im.o.symbols[i]
		switch {
		case s.section != nil:
			im.addr[i] = im.At[s.section.part] + l.off[s.section] + s.value
		case s.defined:
			im.addr[i] = s.value
		case known(unknown, s.name):
			addr, ok := outside(s.name)
			switch {
			case ok:
				im.addr[i] = addr
			case !s.weak:
				return fmt.Errorf("%w: unknown symbol %s", ErrObject, s.name)
			}
		}
	}
	return nil
}

// relocate fills in a place.
func (im *Image) relocate(l *Layout, r *reloc) error {
	if r.Value == objfile.LinkNone {
		return nil
	}
	off := l.off[r.in] + r.off
	place := im.At[r.in.part] + off
	value := im.addr[r.symbol] + uint64(r.addend)
	veneer, far := l.veneers[r.symbol]
	switch r.Value {
	case objfile.LinkSlot:
		value = im.At[Rodata] + l.slots[r.symbol] + uint64(r.addend) - place
	case objfile.LinkCall, objfile.LinkRelative:
		if far && !reaches(int64(value-place), r) {
			value = im.At[Text] + veneer + uint64(r.addend)
		}
		value -= place
	}
	if !reaches(int64(value), r) {
		return fmt.Errorf("%w: %s of %s in section %s does not reach from %#x: compile it with -fno-pic -mcmodel=kernel, as kprobe cc does",
			ErrObject, r.Name, im.o.symbols[r.symbol].name, r.in.name, place)
	}
	to := im.Bytes[r.in.part][off:]
	if r.Size == 8 {
		binary.LittleEndian.PutUint64(to, value)
	} else {
		binary.LittleEndian.PutUint32(to, uint32(value))
	}
	return nil
}

// reaches says whether a relocation has room for a value.
func reaches(v int64, r *reloc) bool {
	switch {
	case r.Size == 8:
		return true
	case r.Signed:
		return v == int64(int32(v))
	}
	return v >= 0 && v <= math.MaxUint32
}

// Symbol gives the address of a name that the module defines for others.
func (im *Image) Symbol(name string) (addr uint64, ok bool) {
	for i := range im.o.symbols {
		if s := &im.o.symbols[i]; s.defined && !s.local && s.name == name {
			return im.addr[i], true
		}
	}
	return 0, false
}

// known says whether a name is one of some, in order.
func known(names []string, name string) bool {
	_, ok := slices.BinarySearch(names, name)
	return ok
}
