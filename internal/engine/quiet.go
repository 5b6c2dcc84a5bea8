package engine

// waitHandlers waits until no handler of probes whose code has been taken out runs, and lets none run
// any more: a hit may be on its way.
func (c *Core) waitHandlers(ps []*Probe) {
	if c.can.Caller == nil {
		return
	}
	for _, p := range ps {
		p.h.Mute.Store(true)
	}
	c.ending.Add(1)
	defer c.ending.Add(-1)
	for _, p := range ps {
		p.h.Quiet()
	}
}

// wake lets handlers run of probes whose code is about to be put in.
func wake(ps []*Probe) {
	for _, p := range ps {
		p.h.Mute.Store(false)
	}
}
