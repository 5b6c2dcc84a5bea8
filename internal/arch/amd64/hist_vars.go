package amd64

import "kprobes.dev/kprobes/internal/fetch"

// histFrom emits what a variable is subtracted from: the clock as it is when the hit comes, or a number.
func (f *frame) histFrom(c *counting) {
	v := c.t.Hist.Since
	switch {
	case v == nil:
		return
	case v.From.From == fetch.HistClock:
		f.tsc()
	default:
		f.histLoads(c.storing, []fetch.HistNumber{v.From})
		f.histNumber(c.storing, &v.From)
	}
	f.MovMR(8, f.tempAt(c.hist+histSince), RAX)
}

// histTake emits the difference to the variable in the entry of another table with the same keys, which is not set any more then. A hit that
// finds none is counted as such, and goes on at done.
func (f *frame) histTake(c *counting, done Label) {
	h, of, at, unset := c.t.Hist, c.t.Of, f.s2(), f.Label()
	since := f.tempAt(c.hist + histSince)
	f.histFind(c, of, false, false, unset)
	f.times(at, at, 8*len(of.Hist.Sets))
	f.MovRI(RDX, of.Addr+layoutOf(of.Hist).vars)
	f.MovRI(RAX, 0)
	f.XchgMR(8, AtIndex(RDX, at, 1, 8*int32(h.Since.Word)), RAX)
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, unset)
	switch {
	case h.Since.From.From != fetch.HistClock:
		f.ShiftRI(Sar, 8, RAX, 1)
		f.NegR(8, RAX)
		f.OpRM(OpAdd, 8, RAX, since)
	case h.Since.Usecs:
		f.duration(c.w.Tick, since)
		f.MovRI(at, 1000)
		f.MovRI(RDX, 0)
		f.extR(8, 0xf7, 6, at) // div
	default:
		f.duration(c.w.Tick, since)
	}
	f.MovMR(8, since, RAX)
	f.after(func() {
		l := layoutOf(h)
		f.Bind(unset)
		f.cpu(true)
		f.MovRI(RDX, l.stride)
		f.ImulRR(8, RAX, RDX)
		f.MovRI(RDX, c.t.Addr+l.columns+l.unset)
		f.Lock().IncM(8, AtIndex(RDX, RAX, 1, 0))
		f.Jmp(done)
	})
}

// histSet emits the setting of the entry's variables. A number is stored with a bit below it that says that it is set; the clock is never 0.
func (f *frame) histSet(c *counting) {
	h, at := c.t.Hist, f.s2()
	if len(h.Sets) == 0 {
		return
	}
	f.MovRM(8, at, f.tempAt(c.hist+histLeft))
	f.times(at, at, 8*len(h.Sets))
	for i := range h.Sets {
		if h.Sets[i].From == fetch.HistClock {
			f.tsc()
		} else {
			f.MovRM(8, RAX, f.tempAt(c.set+i))
			f.Lea(RAX, AtIndex(RAX, RAX, 1, 1))
		}
		f.MovRI(RDX, c.t.Addr+layoutOf(h).vars)
		f.MovMR(8, AtIndex(RDX, at, 1, 8*int32(i)), RAX)
	}
}
