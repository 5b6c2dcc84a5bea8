package kernel

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
		return raw(tsc, cpu) - a + b + k.word("__gtod_offset")
	}, nil
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
