// Package kprobes has the types of kprobes.dev/kprobes that the check looks at.
package kprobes

type Regs struct{ AX uint64 }

type Flags uint32

const (
	FlagDisabled Flags = 1 << iota
	FlagSleepable
)

type Kprobe struct {
	SymbolName   string
	Offset       uint64
	Addr         uint64
	PreHandler   func(p *Kprobe, regs *Regs) int
	PostHandler  func(p *Kprobe, regs *Regs, flags uint64)
	FaultHandler func(p *Kprobe, regs *Regs, trapnr int) int
	Flags        Flags
}

type KretprobeInstance struct{ Data []byte }

type Kretprobe struct {
	Kp           Kprobe
	Handler      func(ri *KretprobeInstance, regs *Regs) int
	EntryHandler func(ri *KretprobeInstance, regs *Regs) int
	MaxActive    int
}

type Jprobe struct {
	Kp    Kprobe
	Entry any
}

func RegisterKprobe(*Kprobe) error { return nil }

func OnCall(fn, handler any) (*Jprobe, error) { return nil, nil }

func OnReturn(fn, handler any) (*Kretprobe, error) { return nil, nil }
