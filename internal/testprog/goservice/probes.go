package main

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// functions.txt lists what is probed, a function a line.
//
//go:embed functions.txt
var list string

// listed gives the functions of the list.
func listed() []string { return strings.Fields(list) }

// armed is what is probed.
type armed struct {
	core  *kprobes.Core
	names []string         // of the counters
	evs   []*kprobes.Event // in the order of names
	pres  map[string]*kprobes.Kprobe
	rets  map[string]*kprobes.Kretprobe

	stop  chan bool
	churn sync.WaitGroup
	turns int
	bad   error
}

// Which functions of the list get a handler: one in so many of these packages. In others a
// handler may not run everywhere, or a return may leave no register free. One that takes no handler, since a jump there would cross a page
// for instance, has a counter: that depends on where the linker has put it.
const (
	preEvery = 5
	retEvery = 9
)

var handled = []string{"main.", "encoding/json.", "net/http.", "net/textproto.", "crypto/tls.", "fmt.", "bytes."}

// probe arms all.
func (s *service) probe() (any, error) {
	var err error
	if s.core, err = kprobes.Self(); err != nil {
		return nil, err
	}
	s.pres, s.rets, s.names = map[string]*kprobes.Kprobe{}, map[string]*kprobes.Kretprobe{}, nil
	plain := func(name string) { s.names = append(s.names, name) }
	var pres []*kprobes.Kprobe
	var rets []*kprobes.Kretprobe
	for i, name := range listed() {
		kp := kprobes.Kprobe{SymbolName: name}
		switch in := slices.ContainsFunc(handled, func(p string) bool { return strings.HasPrefix(name, p) }); {
		case in && i%retEvery == 0:
			rp := &kprobes.Kretprobe{Kp: kp, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }}
			s.rets[name] = rp
			rets = append(rets, rp)
		case in && i%preEvery == 1:
			kp.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }
			s.pres[name] = &kp
			pres = append(pres, &kp)
		default:
			plain(name)
		}
	}
	if err := kprobes.RegisterKprobesOrSkip(pres, func(k *kprobes.Kprobe, _ error) {
		delete(s.pres, k.SymbolName)
		plain(k.SymbolName)
	}); err != nil {
		return nil, fmt.Errorf("kprobes: %w", err)
	}
	if err := kprobes.RegisterKretprobesOrSkip(rets, func(r *kprobes.Kretprobe, _ error) {
		delete(s.rets, r.Kp.SymbolName)
		plain(r.Kp.SymbolName)
	}); err != nil {
		return nil, fmt.Errorf("kretprobes: %w", err)
	}
	if s.evs, err = s.count(s.names); err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	tactics := map[string]int{}
	for _, e := range s.evs {
		tactic, _ := e.Form()
		tactics[string(tactic)]++
	}
	return map[string]any{"counters": len(s.evs), "kprobes": len(s.pres), "kretprobes": len(s.rets), "tactics": tactics}, nil
}

// count puts counters on functions.
func (s *service) count(names []string) ([]*kprobes.Event, error) {
	defs := make([]*event.Def, len(names))
	for i, name := range names {
		defs[i] = &event.Def{Kind: event.Probe, Place: event.Place{Kind: event.PlaceSymbol, Symbol: name}}
	}
	return s.core.Add(defs, &kprobes.AddOptions{Count: true})
}

// counted is what one probe has counted.
type counted struct {
	Kind   string `json:"kind"`
	Hits   uint64 `json:"hits"`
	Missed uint64 `json:"missed"`
}

// counts tells of all probes, by function.
func (s *service) counts() map[string]counted {
	out := map[string]counted{}
	for i, e := range s.evs {
		n := s.core.Counts(e)
		out[s.names[i]] = counted{"counter", n.Hits, n.Missed}
	}
	for name, k := range s.pres {
		n := k.State()
		out[name] = counted{"kprobe", n.Hits, n.Misses.Total()}
	}
	for name, r := range s.rets {
		n := r.State()
		out[name] = counted{"kretprobe", n.Hits, n.Misses.Total() + n.Unwound}
	}
	return out
}

// startChurn begins to disarm and arm all probes in a loop.
func (s *service) startChurn() error {
	if s.core == nil || s.stop != nil {
		return errors.New("churn: nothing is probed, or it goes on already")
	}
	s.stop, s.turns, s.bad = make(chan bool), 0, nil
	s.churn.Go(func() {
		for s.bad == nil {
			select {
			case <-s.stop:
				return
			case <-time.After(time.Millisecond):
				s.bad = s.turn()
				s.turns++
			}
		}
	})
	return nil
}

// turn disarms all and arms it again: by the switch for all, by taking counters out and
// putting them in anew, by disabling what has handlers.
func (s *service) turn() error {
	if s.turns%3 == 0 {
		return errors.Join(s.core.SetEnabled(false), s.core.SetEnabled(true))
	}
	if s.turns%3 == 1 {
		var errs []error
		for _, k := range s.pres {
			errs = append(errs, kprobes.DisableKprobe(k))
		}
		for _, k := range s.pres {
			errs = append(errs, kprobes.EnableKprobe(k))
		}
		return errors.Join(errs...)
	}
	const parts = 4
	at := s.turns / 3 % parts * len(s.evs) / parts
	end := at + len(s.evs)/parts
	if err := s.core.Remove(s.evs[at:end]); err != nil {
		return fmt.Errorf("counters taken out: %w", err)
	}
	evs, err := s.count(s.names[at:end])
	if err != nil {
		return fmt.Errorf("counters put in again: %w", err)
	}
	copy(s.evs[at:], evs)
	return nil
}

// endChurn ends it.
func (s *service) endChurn() (any, error) {
	if s.stop == nil {
		return nil, errors.New("settle: there is no churn")
	}
	close(s.stop)
	s.churn.Wait()
	s.stop = nil
	return map[string]int{"turns": s.turns}, s.bad
}

// unprobe takes all out.
func (s *service) unprobe() (any, error) {
	err := s.core.Remove(s.evs)
	kprobes.UnregisterKprobes(slices.Collect(maps.Values(s.pres)))
	kprobes.UnregisterKretprobes(slices.Collect(maps.Values(s.rets)))
	s.evs, s.names, s.pres, s.rets = nil, nil, nil, nil
	return map[string]uint64{"code": s.core.Target().Capabilities().CodeUsed()}, err
}

// survey tells which functions of a pattern a load hits, and how often.
func (s *service) survey(glob string) (any, error) {
	var err error
	if s.core, err = kprobes.Self(); err != nil {
		return nil, err
	}
	refused := map[string]string{}
	all := &event.Def{Kind: event.Probe, Place: event.Place{Kind: event.PlaceSymbol, Symbol: glob, Glob: true}}
	evs, err := s.core.Add([]*event.Def{all}, &kprobes.AddOptions{Count: true, Skip: func(name string, why error) { refused[name] = why.Error() }})
	if err != nil {
		return nil, err
	}
	done := s.load(400, 4)
	hits := map[string]uint64{}
	for _, e := range evs {
		if n := s.core.Counts(e).Hits; n > 0 {
			hits[e.Place().Symbol] = n
		}
	}
	return map[string]any{"probed": len(evs), "refused": refused, "hits": hits, "load": done}, s.core.Remove(evs)
}
