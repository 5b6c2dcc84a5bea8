package process

import (
	"encoding/binary"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// Instances classifies what is in the pools. See internal/arch/amd64/instance.go for what an
// instance tells.
func (t *Target) Instances() (active, unwound map[int]int, err error) {
	active, unwound = map[int]int{}, map[int]int{}
	if t.control == nil || len(t.pools) == 0 {
		return active, unwound, nil
	}
	err = t.stopped(func(s *ptrace.Stopped) error { return t.classify(s, active, unwound) })
	return active, unwound, err
}

// classify counts the instances of each event. Precondition: the world is stopped.
func (t *Target) classify(s *ptrace.Stopped, active, unwound map[int]int) error {
	places, err := t.stackPlaces(s)
	if err != nil {
		return err
	}
	for _, u := range t.pools {
		err := t.eachInstance(u, func(i native.Instance) {
			if t.inProgress(i, places) {
				active[i.Event]++
			} else {
				unwound[i.Event]++
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eachInstance reads a pool's slots that are taken, skipping pages that were never
// touched.
func (t *Target) eachInstance(u poolUse, f func(native.Instance)) error {
	return t.eachSlot(u.pool, func(_ uint64, slot []byte) error {
		if i, ok := native.ReadInstance(slot, t.golang != nil); ok {
			f(i)
		}
		return nil
	})
}

// stackPlaces is where stacks stand in a stopped world.
type stackPlaces struct {
	maps    []procfs.Map
	threads []uint64 // stack pointers
	gs      map[uint64]goroutine
}

func (t *Target) stackPlaces(s *ptrace.Stopped) (*stackPlaces, error) {
	maps, err := s.Maps()
	if err != nil {
		return nil, err
	}
	p := &stackPlaces{maps: maps, gs: map[uint64]goroutine{}}
	for _, th := range s.Everyone() {
		p.threads = append(p.threads, t.frameOf(th))
	}
	if t.golang == nil {
		return p, nil
	}
	gs, err := t.golang.goroutines(s.Threads())
	for _, g := range gs {
		p.gs[g.id] = g
	}
	return p, err
}

// inProgress says whether the instance's call has not ended: its return address still
// stands where it was, above the stack pointer of what runs on that stack.
func (t *Target) inProgress(i native.Instance, p *stackPlaces) bool {
	at := i.SP
	if at == 0 {
		g, ok := p.gs[i.GoID]
		if !ok || g.hi-i.Distance < g.sp {
			return false
		}
		at = g.hi - i.Distance
	} else if p.below(at) {
		return false
	}
	return t.stands(at, i.Return)
}

// stands says whether a call's return address stands where it stood at its entry, or a stub
// that stands for it.
func (t *Target) stands(at, ret uint64) bool {
	var b [8]byte
	if t.p.ReadMem(at, b[:]) != nil {
		return false
	}
	v, to := binary.LittleEndian.Uint64(b[:]), t.Caller(ret)
	return t.Caller(v) == to || t.Caller(native.StubOf(v)) == to
}

// below says whether a thread runs on the same stack with its stack pointer above at.
func (p *stackPlaces) below(at uint64) bool {
	for _, m := range p.maps {
		if !m.Contains(at) {
			continue
		}
		for _, sp := range p.threads {
			if m.Contains(sp) && m.Size() <= ptrace.MaxStack {
				return at < sp
			}
		}
	}
	return false
}
