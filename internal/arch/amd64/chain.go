package amd64

import (
	"slices"

	"kprobes.dev/kprobes/internal/fetch"
)

// spanCode is what makes code for an argument that is a context (fetch.Arg.Chain).
type spanCode interface {
	// take emits the words of a span, of argument i, into its temporaries.
	take(f *frame, s *storing, i int)
	// enter emits the saving of the words of a span into the slot of S1, from an offset on.
	enter(f *frame, a *fetch.Arg, off int32)
}

// chainCode is a spanCode.
type chainCode struct{ *fetch.Chain }

// ChainCode is fetch.Arg.Chain.
func ChainCode(c *fetch.Chain) any { return chainCode{c} }

// take is spanCode's: at a return the entry has saved the words.
func (c chainCode) take(f *frame, s *storing, i int) {
	a := &s.w.Prog.Args[i]
	if !a.AtEntry {
		c.walk(f, a, s, s.temps[i])
		return
	}
	from := s.entry + slices.Index(s.w.Prog.EntryBases(), a.Saved[0])
	for n := range a.Saved {
		f.MovRM(8, RAX, f.tempAt(from+n))
		f.MovMR(8, f.tempAt(s.temps[i]+n), RAX)
	}
}

// enter is spanCode's. It clobbers what walk does but S1.
func (c chainCode) enter(f *frame, a *fetch.Arg, off int32) {
	at := *a
	at.AtEntry = false // the point is the entry
	f.MovMR(8, f.tempAt(tempUnits), f.s1())
	c.walk(f, &at, nil, fixedTemps)
	f.MovRM(8, f.s1(), f.tempAt(tempUnits))
	for n := range a.Saved {
		f.MovRM(8, RAX, f.tempAt(fixedTemps+n))
		f.MovMR(8, At(f.s1(), off+int32(8*n)), RAX)
	}
}

// chain is the code that goes along the contexts of one argument. S1 is the table of the context that it looks at, and S2 the value.
type chain struct {
	*frame
	*fetch.Chain
	t     int // first temporary: the words of the record. Until the end the last one counts the contexts that may follow.
	again Label
	fault Label
	none  Label
	// follow goes on with the context at S2.
	follow Label
	end    Label // RAX is the last word
}

// walk emits the way from a context to the span that it carries, into the temporaries from t. It clobbers RAX, RDX, S1 and S2.
//
//	again:  which type has the context?   ── a root, nil ──► none
//	        its parent ──► follow            unknown ──────► end
//	        a value: is the key ours? ── no ──► follow
//	          yes: which type has the span? ── ids, flags ──► end
//	follow: the parent's two words; again, unless there were too many
func (of chainCode) walk(f *frame, a *fetch.Arg, s *storing, t int) {
	c := &chain{frame: f, Chain: of.Chain, t: t, fault: f.Label(), none: f.Label(), follow: f.Label(), end: f.Label()}
	f.MovMI(8, c.last(), int32(c.Limit))
	c.first(a, s)
	c.again = f.Here()
	f.TestRR(8, f.s1(), f.s1())
	f.Jcc(CondE, c.none)
	value := f.Label()
	c.links(value)
	c.stop(fetch.SpanStrange)
	f.Bind(value)
	c.value(c.parentOf(fetch.LinkValue))
	f.Bind(c.follow)
	f.load(spaceAny, 8, f.s1(), At(f.s2(), 0), c.fault)
	f.load(spaceAny, 8, f.s2(), At(f.s2(), 8), c.fault)
	f.OpMI(OpSub, 8, c.last(), 1)
	f.Jcc(CondNE, c.again)
	c.stop(fetch.SpanLong)
	f.Bind(c.fault)
	c.stop(fetch.SpanFault)
	f.Bind(c.none)
	f.MovRI(RAX, uint64(fetch.SpanNone))
	f.Bind(c.end)
	f.MovMR(8, c.last(), RAX)
}

// last is the temporary of the last word.
func (c *chain) last() Mem { return c.tempAt(c.t + 3) }

// stop emits the end with a state.
func (c *chain) stop(s fetch.SpanState) {
	c.MovRI(RAX, uint64(s))
	c.Jmp(c.end)
}

// first emits S1 and S2 = the words of the argument.
func (c *chain) first(a *fetch.Arg, s *storing) {
	if a.Counted() {
		c.checks(a, s, c.fault)
		c.argBase(RAX, a, a.Base, s, c.fault)
		c.MovMR(8, c.tempAt(c.t), RAX)
		c.argBase(c.s2(), a, a.Len, s, c.fault)
		c.MovRM(8, c.s1(), c.tempAt(c.t))
		return
	}
	c.address(RAX, a, s, c.fault)
	c.load(spaceAny, 8, c.s1(), At(RAX, 0), c.fault)
	c.load(spaceAny, 8, c.s2(), At(RAX, 8), c.fault)
}

// links emits the question which type the context of S1 has: it goes on at value, at c.none, or with S2 = where the parent is at
// c.follow. A type that is not known goes on behind.
func (c *chain) links(value Label) {
	parents := map[int32]Label{}
	var order []int32
	for i := range c.Links {
		l := &c.Links[i]
		to := value
		switch l.Kind {
		case fetch.LinkRoot:
			to = c.none
		case fetch.LinkParent:
			if _, ok := parents[l.Parent]; !ok {
				parents[l.Parent], order = c.Label(), append(order, l.Parent)
			}
			to = parents[l.Parent]
		}
		c.is(c.s1(), l.Table)
		c.Jcc(CondE, to)
	}
	c.after(func() {
		for _, off := range order {
			c.Bind(parents[off])
			c.Lea(c.s2(), At(c.s2(), off))
			c.Jmp(c.follow)
		}
	})
}

// is emits a comparison of a register with a number. It clobbers RDX.
func (c *chain) is(r Reg, v uint64) {
	if v == uint64(int64(int32(v))) {
		c.OpRI(OpCmp, 8, r, int32(v))
		return
	}
	c.MovRI(RDX, v)
	c.OpRR(OpCmp, 8, r, RDX)
}

// parentOf is where contexts of a kind have their parent: those with a value are of one type, which stands for a pointer or a value.
func (c *chain) parentOf(kind fetch.LinkKind) int32 {
	i := slices.IndexFunc(c.Links, func(l fetch.Link) bool { return l.Kind == kind })
	return c.Links[i].Parent
}

// value emits what is done with a context at S2 that has a key and a value, and its parent at an offset. One with another key goes on behind.
func (c *chain) value(parent int32) {
	other := c.Label()
	c.load(spaceAny, 8, RAX, At(c.s2(), c.KeyAt), c.fault)
	c.is(RAX, c.KeyType)
	c.Jcc(CondNE, other)
	c.load(spaceAny, 8, RAX, At(c.s2(), c.KeyAt+8), c.fault)
	c.load(spaceAny, c.KeySize, RAX, At(RAX, 0), c.fault)
	c.OpRI(OpCmp, max(c.KeySize, 4), RAX, c.Key)
	c.Jcc(CondNE, other)
	c.load(spaceAny, 8, RAX, At(c.s2(), c.ValueAt), c.fault)
	c.load(spaceAny, 8, c.s2(), At(c.s2(), c.ValueAt+8), c.fault)
	c.TestRR(8, RAX, RAX)
	c.Jcc(CondE, c.none)
	found := map[int32]Label{}
	var order []int32
	for _, t := range c.Spans {
		c.is(RAX, t.Type)
		if t.At < 0 {
			c.Jcc(CondE, c.none)
			continue
		}
		if _, ok := found[t.At]; !ok {
			found[t.At], order = c.Label(), append(order, t.At)
		}
		c.Jcc(CondE, found[t.At])
	}
	c.stop(fetch.SpanStrangeOne)
	one := c.Label()
	for _, off := range order {
		c.Bind(found[off])
		c.Lea(c.s2(), At(c.s2(), off))
		c.Jmp(one)
	}
	c.Bind(one)
	c.span()
	c.Bind(other)
	c.Lea(c.s2(), At(c.s2(), parent))
}

// span emits the loads of a trace.SpanContext at S2.
func (c *chain) span() {
	for i, off := range []int32{c.Trace, c.Trace + 8, c.Span} {
		c.load(spaceAny, 8, RAX, At(c.s2(), off), c.fault)
		c.MovMR(8, c.tempAt(c.t+i), RAX)
	}
	c.load(spaceAny, 1, RDX, At(c.s2(), c.Remote), c.fault)
	c.ShiftRI(Shl, 4, RDX, fetch.SpanRemoteShift)
	c.load(spaceAny, 1, RAX, At(c.s2(), c.Flags), c.fault)
	c.ShiftRI(Shl, 4, RAX, fetch.SpanFlagsShift)
	c.OpRR(OpOr, 4, RAX, RDX)
	c.OpRI(OpOr, 4, RAX, int32(fetch.SpanFound))
	c.Jmp(c.end)
}
