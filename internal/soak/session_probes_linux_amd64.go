package soak

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/process"
)

// arm adds probes: those of one kind in one stop. What is refused is noted.
func (x *session) arm(ps []*probe) error {
	kinds := map[bool][]*probe{}
	for _, b := range ps {
		if b.call {
			x.handler(b)
			continue
		}
		if b.def == nil {
			if err := b.parse(); err != nil {
				return err
			}
		}
		err := x.core.Check(b.def, &kprobes.AddOptions{Count: b.count, Tactic: x.tactic})
		if err != nil && b.def.Stack > 0 { // there may be no way to the caller there
			b.def.Stack = 0
			err = x.core.Check(b.def, &kprobes.AddOptions{Count: b.count, Tactic: x.tactic})
		}
		if isGone(err) {
			return err
		} else if err != nil {
			x.refuse(b, err)
			continue
		}
		kinds[b.count] = append(kinds[b.count], b)
	}
	for _, count := range []bool{true, false} {
		if err := x.add(kinds[count], count); err != nil {
			return err
		}
	}
	return nil
}

// add arms probes in one stop. If one is refused that the check let pass, halves are tried.
func (x *session) add(ps []*probe, count bool) error {
	if len(ps) == 0 {
		return nil
	}
	defs := make([]*event.Def, len(ps))
	for i, b := range ps {
		defs[i] = b.def
	}
	evs, err := x.core.Add(defs, &kprobes.AddOptions{Count: count, Tactic: x.tactic})
	switch {
	case err == nil:
		for i, b := range ps {
			x.evs[b] = append(x.evs[b], evs[i])
		}
		return nil
	case isGone(err):
		return err
	case !errors.Is(err, kprobes.ErrRegister):
		var bad *event.Error
		if !errors.As(err, &bad) {
			return fmt.Errorf("add of %d probes: %w", len(ps), err)
		}
	}
	if len(ps) == 1 {
		x.refuse(ps[0], err)
		return nil
	}
	return errors.Join(x.add(ps[:len(ps)/2], count), x.add(ps[len(ps)/2:], count))
}

// handler registers a Kprobe whose handler counts.
func (x *session) handler(b *probe) {
	n := &atomic.Uint64{}
	m, err := x.core.Target().Space().Module(b.obj)
	if err != nil {
		x.refuse(b, err)
		return
	}
	k := &kprobes.Kprobe{Addr: m.Runtime(b.addr), PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		n.Add(1)
		return 0
	}}
	if err := x.core.RegisterKprobe(k); err != nil {
		x.refuse(b, err)
		return
	}
	x.calls[b], x.ran[b] = k, n
}

// toggle takes out what is to be taken out in the middle, and puts it in again.
func (x *session) toggle() error {
	var evs []*kprobes.Event
	var again []*probe
	for _, b := range x.probes {
		if b.toggle && len(x.evs[b]) > 0 {
			evs = append(evs, x.evs[b]...)
			if !b.half {
				again = append(again, b)
			}
		}
	}
	if len(evs) == 0 || x.gone() {
		return nil
	}
	x.r.toggles += len(evs) + len(again)
	err := x.core.Remove(evs)
	if t, ok := x.core.Target().(*process.Target); ok && len(t.Remaining()) > 0 {
		for _, e := range evs {
			x.end.vague[e] = true
		}
	}
	if err == nil {
		err = x.arm(again)
	}
	if x.st.feed == nil && isGone(err) {
		return nil // nothing holds it up
	}
	return err
}

func (x *session) refuse(b *probe, err error) {
	if len(x.evs[b]) > 0 {
		x.wrongly("%s (%s): it was armed, and is refused when it is put in again: %v", b.name, b.place, err)
		return
	}
	x.r.refused[reason(err)]++
}

// reason shortens an error to what it has in common with others.
func reason(err error) string {
	text, _, _ := strings.Cut(strings.ReplaceAll(err.Error(), "\n"+kprobes.ErrRegister.Error(), ""), "\n")
	for _, r := range []string{
		"blacklist", "restartable sequence", "can be used to check the stack", "not an instruction boundary", "inside an instruction",
		"exits are not", "not all exits", "not found in the code", "SIGTRAP", "no breakpoint", "can not be moved", "another instruction jumps", "too short",
	} {
		if strings.Contains(text, r) {
			return r
		}
	}
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return text
}
