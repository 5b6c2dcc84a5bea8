package kernel

import "sync"

// TraceClock is Clock for the clock that the guest's trace files have unless somebody chose
// another: sched_clock ("local") where the kernel trusts it, else sched_clock_cpu ("global"),
// which follows the time of day at each tick (kernel/sched/clock.c, kernel/trace/trace.c,
// tracing_set_default_clock). The latter is as exact as its rate between two ticks.
func (k *Kernel) TraceClock() (func(tsc uint64, cpu int) uint64, error) {
	raw, err := k.Clock()
	if err != nil || k.flag("__sched_clock_stable") {
		return raw, err
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	o := &offsets{t: t, typ: "sched_clock_data"}
	tickRaw, tickGtod := o.of("tick_raw"), o.of("tick_gtod")
	if o.err != nil {
		return nil, o.err
	}
	var mu sync.Mutex
	cpus := map[int]*tickStamps{}
	return func(tsc uint64, cpu int) uint64 {
		at, err := k.perCPU("sched_clock_data", cpu)
		if err != nil {
			return raw(tsc, cpu)
		}
		a, err1 := k.u64(at + tickRaw)
		b, err2 := k.u64(at + tickGtod)
		if err1 != nil || err2 != nil || a == 0 {
			return raw(tsc, cpu)
		}
		mu.Lock()
		defer mu.Unlock()
		if cpus[cpu] == nil {
			cpus[cpu] = &tickStamps{}
		}
		return raw(tsc, cpu) + cpus[cpu].ahead(a, b) + k.word("__gtod_offset")
	}, nil
}

// tickStamps are what a CPU has written down at its last tick: its raw clock and the time of day. It writes
// one after the other, and a vCPU may be stopped between the two for long, so that what is read may be of
// two ticks: then the time of day is a tick ahead.
type tickStamps struct {
	raw    uint64 // of the stamps that are believed; 0: none were seen
	lead   uint64 // by what the time of day was ahead of the raw clock then
	doubt  uint64 // the raw clock of stamps that are not believed yet
	differ uint64 // and the lead
}

// mostDrift is more than the lead changes from one look to the next while records come, in nanoseconds, and less
// than a tick (1 ms with 1000 Hz).
const mostDrift = 500_000

// ahead gives the lead by stamps that were just read, or the one before where these may be of two ticks. A lead
// that two ticks agree about is believed.
func (s *tickStamps) ahead(raw, gtod uint64) uint64 {
	lead := gtod - raw
	near := func(a uint64) bool { return lead-a+mostDrift <= 2*mostDrift }
	switch {
	case s.raw == 0 || near(s.lead) || s.doubt != 0 && s.doubt != raw && near(s.differ):
		s.raw, s.lead, s.doubt = raw, lead, 0
	case s.doubt == 0 || s.doubt != raw:
		s.doubt, s.differ = raw, lead
	}
	return s.lead
}

// flag says whether a static key is on, or a variable not 0.
func (k *Kernel) flag(name string) bool { return uint32(k.word(name)) != 0 }

// word reads a variable; 0 if it is not there.
func (k *Kernel) word(name string) uint64 {
	at, ok := k.Addr(name)
	if !ok {
		return 0
	}
	v, err := k.u64(at)
	if err != nil {
		return 0
	}
	return v
}
