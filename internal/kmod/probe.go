package kmod

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// Kind is a kind of probe that a module registers.
type Kind int

// The kinds.
const (
	Kprobe Kind = iota
	Kretprobe
	Jprobe
)

// Probe is what a module asks for when it registers a struct kprobe, kretprobe or jprobe of linux/kprobes.h. Addresses are the target's; 0: there is none.
type Probe struct {
	Kind     Kind
	At       uint64 // of the struct
	Addr     uint64 // of the instruction; 0: Symbol says where
	Symbol   string
	Offset   uint32 // behind either
	Disabled bool
	// Pre and Post are the handlers of a kprobe, Entry and Return those of a kretprobe. Entry is also a jprobe's function. Fault is that of their faults.
	Pre, Post, Fault, Entry, Return uint64
	MaxActive                       int    // of a kretprobe; 0 or less: the default
	DataSize                        uint64 // bytes of each call
}

// The structs of linux/kprobes.h, on a machine with pointers of 8 bytes: where the members lie, in bytes.
const (
	kprobeMissed  = 32
	kprobeAddr    = 40
	kprobeSymbol  = 48
	kprobeOffset  = 56
	kprobeFlags   = 60
	kprobePre     = 64
	kprobePost    = 72
	kprobeFault   = 80
	kprobeOpcode  = 96
	kprobeOwn     = 104
	kprobeSize    = 112
	retHandler    = 112
	retEntry      = 120
	retMaxActive  = 128
	retMissed     = 132
	retDataSize   = 136
	kretprobeSize = 144
	jprobeEntry   = 112
	jprobeSize    = 120
)

// Flags of struct kprobe.
const (
	flagGone      = 1
	flagDisabled  = 2
	flagOptimized = 4
)

// Bounds of what a module may ask for, in bytes (KRETPROBE_MAX_DATA_SIZE and KSYM_NAME_LEN, Linux 6.18).
const (
	maxDataSize = 4096
	maxSymbol   = 512
)

// ReadProbe reads a struct out of a target's memory, which may hold anything. text is the module's code, where its handlers lie. The errors are
// those of the kernel's functions: EFAULT, EINVAL, E2BIG.
func ReadProbe(read func(addr uint64, b []byte) error, kind Kind, at uint64, text interval.Range) (*Probe, error) {
	size := [...]int{Kprobe: kprobeSize, Kretprobe: kretprobeSize, Jprobe: jprobeSize}[kind]
	b := make([]byte, size)
	if err := read(at, b); err != nil {
		return nil, errno.Errorf(unix.EFAULT, "the struct at 0x%x: %w", at, err)
	}
	word := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	p := &Probe{
		Kind: kind, At: at, Addr: word(kprobeAddr), Offset: binary.LittleEndian.Uint32(b[kprobeOffset:]),
		Fault: word(kprobeFault), Disabled: binary.LittleEndian.Uint32(b[kprobeFlags:])&flagDisabled != 0,
	}
	switch kind {
	case Kprobe:
		p.Pre, p.Post = word(kprobePre), word(kprobePost)
	case Kretprobe:
		p.Return, p.Entry = word(retHandler), word(retEntry)
		p.MaxActive, p.DataSize = int(int32(binary.LittleEndian.Uint32(b[retMaxActive:]))), word(retDataSize)
	case Jprobe:
		p.Entry = word(jprobeEntry)
	}
	return p, p.check(read, word(kprobeSymbol), text)
}

// check refuses what the kernel refuses, and what it would crash of. It reads the symbol's name.
func (p *Probe) check(read func(uint64, []byte) error, symbol uint64, text interval.Range) (err error) {
	switch {
	case symbol == 0 && p.Addr == 0:
		return errno.Errorf(unix.EINVAL, "the struct at 0x%x has neither a symbol_name nor an addr", p.At)
	case symbol != 0 && p.Addr != 0:
		return errno.Errorf(unix.EINVAL, "the struct at 0x%x has a symbol_name and an addr: set one of them (a struct that was registered before has its addr still)", p.At)
	case p.DataSize > maxDataSize:
		return errno.Errorf(unix.E2BIG, "data_size of %d bytes: up to %d", p.DataSize, maxDataSize)
	case p.Kind == Jprobe && p.Entry == 0:
		return errno.Errorf(unix.EINVAL, "the jprobe at 0x%x has no entry", p.At)
	}
	for _, h := range []struct {
		name string
		at   uint64
	}{{"pre_handler", p.Pre}, {"post_handler", p.Post}, {"fault_handler", p.Fault}, {"entry", p.Entry}, {"handler", p.Return}} {
		if h.at != 0 && !text.Contains(h.at) {
			return errno.Errorf(unix.EINVAL, "%s of the struct at 0x%x is 0x%x, which is no code of the module", h.name, p.At, h.at)
		}
	}
	if symbol != 0 {
		p.Symbol, err = ReadName(read, symbol)
	}
	return err
}

// ReadName reads a string of a module.
func ReadName(read func(uint64, []byte) error, at uint64) (string, error) {
	var name []byte
	for len(name) < maxSymbol { // it may end where memory does
		b := make([]byte, min(64-at%64, uint64(maxSymbol-len(name))))
		if err := read(at, b); err != nil {
			return "", errno.Errorf(unix.EFAULT, "the name at 0x%x: %w", at, err)
		}
		if before, _, ok := bytes.Cut(b, []byte{0}); ok {
			return string(append(name, before...)), nil
		}
		name, at = append(name, b...), at+uint64(len(b))
	}
	return "", errno.Errorf(unix.EINVAL, "a name at 0x%x is longer than %d bytes", at-maxSymbol, maxSymbol-1)
}

// State is what a module is told of a probe, in its struct.
type State struct {
	Addr      uint64 // where it stands
	Opcode    byte   // the first byte of the instruction there
	Missed    uint64 // hits whose handlers were not run
	Uncalled  uint64 // a kretprobe's calls that found no instance
	Disabled  bool
	Optimized bool
	Gone      bool // the object that it stood in is not there any more
}

// TellAddr writes where a probe stands to its struct, which its handlers may read at once.
func (p *Probe) TellAddr(write func(addr uint64, b []byte) error, addr uint64) error {
	return write(p.At+kprobeAddr, binary.LittleEndian.AppendUint64(nil, addr))
}

// Tell writes a state to a probe's struct. The count of a kretprobe's calls that found no instance has 31 bits.
func (p *Probe) Tell(write func(addr uint64, b []byte) error, s *State) error {
	flags := uint32(0)
	for _, f := range []struct {
		on   bool
		flag uint32
	}{{s.Gone, flagGone}, {s.Disabled, flagDisabled}, {s.Optimized, flagOptimized}} {
		if f.on {
			flags |= f.flag
		}
	}
	le := binary.LittleEndian
	if p.Kind == Kretprobe {
		if err := write(p.At+retMissed, le.AppendUint32(nil, uint32(min(s.Uncalled, math.MaxInt32)))); err != nil {
			return err
		}
	}
	return errors.Join(
		write(p.At+kprobeMissed, le.AppendUint64(nil, s.Missed)),
		p.TellAddr(write, s.Addr),
		write(p.At+kprobeFlags, le.AppendUint32(nil, flags)),
		write(p.At+kprobeOpcode, []byte{s.Opcode}),
	)
}
