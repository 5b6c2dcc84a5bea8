package ptrace

import (
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// Bounds of what is read of one stack. A stack in a mapping larger than MaxStack is not
// a thread's own (a goroutine's, a fiber's): its owner must say where it ends.
const (
	MaxStack  = 64 << 20
	stackView = 256 << 10
	// stackScan is how far above its stack pointer a thread's stack is searched for signal frames.
	stackScan = 64 << 10
)

// liveStack is the used part of a thread's stack. In a Go program that is an alternate
// stack that a handler runs on, or nothing: most other stacks lie in the heap, among dead ones,
// and the addresses of code that the runtime does not know stand on none of them (all handlers run on
// alternate stacks, and goroutines are not preempted in such code).
func (s *Stopped) liveStack(th *Thread, goProgram bool) (lo, hi uint64, err error) {
	m, ok, err := s.mapAt(th.regs.SP())
	if !ok || err != nil {
		return 0, 0, err
	}
	lo, hi = StackIn(m, th.regs.SP())
	if !goProgram {
		return lo, hi, nil
	}
	alt, on := s.altStack(m, th.regs.SP())
	if !on {
		return 0, 0, nil
	}
	return lo, min(hi, alt.End), nil
}

// LiveStacks is liveStack of several threads.
func (s *Stopped) LiveStacks(threads []*Thread, goProgram bool) ([]interval.Range, error) {
	out := make([]interval.Range, len(threads))
	for i, th := range threads {
		lo, hi, err := s.liveStack(th, goProgram)
		if err != nil {
			return nil, err
		}
		out[i] = interval.Range{Start: lo, End: max(lo, hi)}
	}
	return out, nil
}

// StackIn is the used part of the stack that sp is in, and that lies in m.
func StackIn(m procfs.Map, sp uint64) (lo, hi uint64) {
	lo, hi = max(sp-128, m.Start)&^7, m.End
	if m.Size() > MaxStack {
		hi = min(hi, sp+stackView)
	}
	return lo, hi
}

// fewThreads are so many that each one's stack is searched for the frame of a signal handler on an alternate stack.
const fewThreads = 16

// StackRoom is how many bytes of stack a thread has left, and whether these are less than need.
func (s *Stopped) StackRoom(th *Thread, need uint64) (room uint64, ends bool) {
	few := len(s.Threads()) <= fewThreads
	if !few && th.regs.SP()%procfs.PageSize >= need {
		return 0, false // all of it lies on one page: no mapping is looked up
	}
	if m, ok, err := s.mapAt(th.regs.SP()); !few && ok && err == nil && m.Perm&procfs.PermWrite != 0 && th.regs.SP()-m.Start >= need {
		return 0, false // in one mapping: the others are not looked up
	}
	maps, err := s.Maps()
	if err != nil {
		return 0, false
	}
	if m, ok := procfs.FindMap(maps, th.regs.SP()); ok && few {
		for next, ok := procfs.FindMap(maps, m.End); ok && next.Perm&procfs.PermWrite != 0 && m.End-th.regs.SP() < stackScan; next, ok = procfs.FindMap(maps, m.End) {
			m.End = next.End // the stack may be static memory
		}
		if alt, on := s.altStack(m, th.regs.SP()); on {
			room = th.regs.SP() - alt.Start
			return room, room < need
		}
	}
	return roomBelow(maps, th.regs.SP(), need)
}

// roomBelow is how many bytes lie between a stack pointer and the end of its mapping, and whether they are
// less than need, and the end of the stack: nothing that can be written lies below it, and the kernel does not
// make it grow.
func roomBelow(maps []procfs.Map, sp, need uint64) (room uint64, ends bool) {
	m, ok := procfs.FindMap(maps, sp)
	if !ok || m.Perm&procfs.PermWrite == 0 || m.Path == "[stack]" {
		return 0, false
	}
	below, ok := procfs.FindMap(maps, m.Start-1)
	return sp - m.Start, sp-m.Start < need && !(ok && below.Perm&procfs.PermWrite != 0)
}
