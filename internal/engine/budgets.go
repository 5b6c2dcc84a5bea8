package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/target"
)

// An event that exceeds its budget is disabled: its code is taken out. Where generated code does the event's work it counts down itself, so
// that what is beyond the budget costs next to nothing before anybody has looked (arch.ProbeOp.Budget). The reaper looks, ten times a second.

// takeBudgets has the events of an addition get budgets.
func (c *Core) takeBudgets() {
	c.budgets.give, c.budgets.refill, c.budgets.again = c.giveBudgets, c.refillBudgets, c.armExceeded
}

// Exceeded tells how often events have been disabled by their budgets, or armed again. It takes no lock.
func (c *Core) Exceeded() uint64 { return c.budgets.changes.Load() }

// Exceeded is why the event was disabled by its budget; nil: it is not.
func (e *Event) Exceeded() error {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	return e.over
}

// Budgeted says whether the event was added with a budget.
func (e *Event) Budgeted() bool { return e.most.given() }

// giveBudgets gives new events their budgets, before their code is made.
func (c *Core) giveBudgets(evs []*Event) error {
	c.budgets.forget() // those of an attempt that has failed
	fresh := c.newBudgets(evs)
	var counting []*budget
	for _, b := range fresh {
		if slices.ContainsFunc(b.events, func(m budgeted) bool { return c.countsDown(m.Event) }) {
			counting = append(counting, b)
		}
	}
	if len(counting) > 0 {
		addr, words, err := c.can.Sharing.ShareMemory("budgets", len(counting)*arch.BudgetSize)
		if err != nil {
			return err
		}
		for i, b := range counting {
			b.words, b.off = words, uint64(i)*arch.BudgetSize
			b.code = &arch.Budget{Addr: addr + b.off, Timed: b.most.Nanos > 0, Code: native.BudgetCode()}
		}
	}
	for _, e := range evs {
		if b := e.budget; b != nil && c.countsDown(e) {
			e.work.Budget = b.code
		}
	}
	for _, b := range fresh {
		if b.most.Nanos > 0 {
			tick, err := c.records.Tick()
			if err != nil {
				return fmt.Errorf("budget of time: the length of a tick of the target's clock is not known: %w", err)
			}
			b.cost.tick = float64(tick) / (1 << 32)
		}
		b.fill(c)
		c.budgets.take(b)
	}
	if len(c.budgets.given) > 0 {
		c.startReaper()
	}
	return nil
}

// newBudgets makes the budgets of new events, and gives those that are new too.
func (c *Core) newBudgets(evs []*Event) (fresh []*budget) {
	for _, e := range evs {
		if !e.most.given() || e.budget != nil || e.gone {
			continue
		}
		b := c.budgets.ofFunction[e.Given]
		if n := len(fresh); b == nil && n > 0 && e.Def.Function && fresh[n-1].def() == e.Given {
			b = fresh[n-1]
		}
		if b == nil {
			b = &budget{most: e.most}
			fresh = append(fresh, b)
		}
		e.budget, b.events = b, append(b.events, budgeted{Event: e})
	}
	return fresh
}

// take takes a new budget.
func (bs *budgets) take(b *budget) {
	bs.given = append(bs.given, b)
	if d := b.def(); d.Function {
		if bs.ofFunction == nil {
			bs.ofFunction = map[*event.Def]*budget{}
		}
		bs.ofFunction[d] = b
	}
}

// forget forgets the budgets of events that have ended.
func (bs *budgets) forget() {
	bs.given = slices.DeleteFunc(bs.given, func(b *budget) bool {
		if slices.ContainsFunc(b.events, func(m budgeted) bool { return !m.ended }) {
			return false
		}
		delete(bs.ofFunction, b.def())
		return true
	})
}

// def is the definition that all events of the budget were made of.
func (b *budget) def() *event.Def { return b.events[0].Given }

// countsDown says whether generated code counts an event's hits against its budget: not where a hit costs no more than that, and not in a
// kernel.
func (c *Core) countsDown(e *Event) bool {
	return !e.work.Count && e.held == nil && !e.watches() && c.can.Sharing != nil && c.t.CodegenEnv().Kernel == nil
}

// look counts the hits since it was called last, and what they have cost. The program can write to the words: then its events are disabled too
// early or too late, and Counts.Over is not true. Precondition: Core.mu is held.
func (b *budget) look(c *Core) {
	b.cost.take(b.word(arch.BudgetTicks), b.word(arch.BudgetTimed))
	for i := range b.events {
		m := &b.events[i]
		if m.ended || m.work.Budget != nil && m.held == nil {
			m.outside = false
			continue
		}
		n := c.counts(m.Event).Hits
		if m.outside {
			more := n - min(m.seen, n) // a sum over CPUs that hit meanwhile
			b.others += more
			b.spent += float64(more) * m.untimed()
		}
		m.outside, m.seen = true, max(m.seen, n)
	}
	down := b.word(arch.BudgetHits)
	b.spent += float64(down-min(b.down, down)) * b.perHit()
	b.down = down
}

// perHit is what a hit costs that generated code counts down, in nanoseconds.
func (b *budget) perHit() float64 { return b.cost.work() + b.events[0].untimed() }

// word is one of those that generated code counts in.
func (b *budget) word(off uint64) uint64 {
	if b.words == nil {
		return 0
	}
	return b.words.Load(b.off + off)
}

// fill gives the events a full budget.
func (b *budget) fill(c *Core) {
	b.look(c)
	now := time.Now()
	b.hits, b.work = newBucket(b.most.Hits, b.down+b.others, now), newBucket(b.most.Nanos, uint64(b.spent), now)
	b.show()
}

// refill fills the budget with what time has brought, or tells why it is exceeded.
func (b *budget) refill(c *Core) (over error) {
	b.look(c)
	now := time.Now()
	switch {
	case b.most.Hits > 0 && b.hits.fill(b.down+b.others, now):
		return b.most.tooManyHits()
	case b.most.Nanos > 0 && b.work.fill(uint64(b.spent), now):
		return b.most.tooMuchWork(b.spent / float64(b.down+b.others))
	}
	b.show()
	return nil
}

// show has generated code know how many hits may come.
func (b *budget) show() {
	if b.words == nil {
		return
	}
	limit := uint64(math.MaxUint64)
	if b.most.Hits > 0 {
		limit = b.hits.limit - b.others
	}
	if b.most.Nanos > 0 {
		left := b.work.limit - uint64(b.spent)
		limit = min(limit, b.down+uint64(float64(left)/b.perHit()))
	}
	b.words.Store(b.off+arch.BudgetLimit, limit)
}

// disable marks the events as disabled, and why; nil: as not disabled.
func (b *budget) disable(c *Core, why error) {
	b.over = why
	for _, m := range b.events {
		m.over = why
	}
	c.budgets.changes.Add(1)
}

// refillBudgets fills the budgets again, and takes the code of events out that have exceeded theirs. What can not be taken out now is taken
// out by the next call: until then its code does nothing, or only counts. Precondition: mu is held.
func (c *Core) refillBudgets() {
	if c.closing {
		return
	}
	c.budgets.forget()
	var out []*Event
	for _, b := range c.budgets.given {
		if b.over == nil {
			over := b.refill(c)
			if over == nil {
				continue
			}
			b.disable(c, over)
		}
		for _, m := range b.events {
			if !m.ended && (m.held != nil || m.serves()) {
				out = append(out, m.Event)
			}
		}
	}
	if len(out) > 0 && !c.yielded && !c.debugged() {
		c.takeOutExceeded(out)
	}
}

// takeOutExceeded takes the code of events out that are disabled.
func (c *Core) takeOutExceeded(evs []*Event) {
	for _, e := range evs {
		e.release()
	}
	err := c.update(functionsOf(evs), stopping{then: c.reclaimer.InStop(callsOf(evs))})
	if err != nil && !errors.Is(err, target.ErrGone) {
		c.stubbed.syncErr = alsoTold(c.stubbed.syncErr, err)
	}
}

// armExceeded arms all events again that are disabled by their budgets, and gives them full ones. Those that can not be armed stay disabled.
// Precondition: mu is held.
func (c *Core) armExceeded() error {
	var over []*budget
	var evs []*Event
	for _, b := range c.budgets.given {
		if b.over == nil {
			continue
		}
		over = append(over, b)
		for _, m := range b.events {
			if !m.ended && !m.gone {
				evs = append(evs, m.Event)
			}
		}
	}
	if len(over) == 0 {
		return nil
	}
	c.reclaimer.Rearm(callsOf(slices.DeleteFunc(slices.Clone(evs), (*Event).serves))) // what could not be taken out goes on
	was := make([]error, len(over))
	for i, b := range over {
		was[i] = b.over
		b.disable(c, nil)
		b.fill(c)
	}
	c.stale = true // what has come meanwhile is armed by the next Sync
	err := c.holdAgain(evs)
	if err == nil {
		err = c.update(functionsOf(evs), stopping{})
	}
	if err != nil {
		for i, b := range over {
			b.disable(c, was[i])
		}
		return plain(err)
	}
	c.startReaper()
	return nil
}

// holdAgain has the kernel hold those events' probes again that it has held.
func (c *Core) holdAgain(evs []*Event) error {
	for _, e := range evs {
		if e.form.tactic.Held() && e.held == nil {
			if err := c.hold(e); err != nil {
				return e.refused(err)
			}
		}
	}
	return nil
}
