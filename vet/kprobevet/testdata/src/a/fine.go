package a

import (
	"fmt"
	"time"

	"kprobes.dev/kprobes"
)

// What may sleep, or is no handler, is not looked at.

var sleeper = kprobes.Kprobe{Flags: kprobes.FlagSleepable | kprobes.FlagDisabled, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
	time.Sleep(1)
	return 0
}}

var returned = &kprobes.Kretprobe{
	Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { fmt.Println(); return 0 },
	Kp:      kprobes.Kprobe{Flags: kprobes.FlagSleepable},
}

type holder struct {
	kp kprobes.Kprobe
	jp kprobes.Jprobe
}

func later(h *holder, flags kprobes.Flags) {
	h.kp.PreHandler = sleeps
	h.kp.Flags |= kprobes.FlagSleepable
	h.jp.Entry = func() { time.Sleep(1) }
	h.jp.Kp.Flags = flags
	p := kprobes.Kprobe{PreHandler: sleeps}
	p.Flags = kprobes.FlagSleepable
	rp := kprobes.Kretprobe{}
	rp.Kp = kprobes.Kprobe{Flags: kprobes.FlagSleepable}
	rp.Handler = func(*kprobes.KretprobeInstance, *kprobes.Regs) int { time.Sleep(1); return 0 }
	_ = kprobes.Jprobe{Kp: p, Entry: func() { time.Sleep(1) }}
	_ = kprobes.Jprobe{Kp: made(), Entry: func() { time.Sleep(1) }}
	_ = kprobes.Kprobe{PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { hits.Add(1); return 0 }}
}

func made() kprobes.Kprobe { return kprobes.Kprobe{Flags: kprobes.FlagSleepable} }

func sleeps(*kprobes.Kprobe, *kprobes.Regs) int {
	time.Sleep(1)
	fmt.Println()
	return 0
}

type other struct{ PreHandler func() }

var _ = other{PreHandler: func() { time.Sleep(1) }}
