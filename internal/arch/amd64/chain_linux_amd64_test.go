package amd64

import (
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// chains are contexts in an arena, and what leads from one to the other.
type chains struct {
	a     *arena
	r     *rand.Rand
	chain *fetch.Chain
	nodes uint64 // contexts' values, chainNode bytes each
}

const (
	chainNodes = 64
	chainNode  = 64
	chainKeys  = arenaData + 0x4000 // keys' values
	chainSpans = arenaData + 0x5000 // spans, 128 bytes each
	strange    = 0x4321             // a table, and a type, that is not known
)

// Numbers of more than 32 bits for a table and types. The words of a chain overlap, so they are addresses too: the kernel maps nothing there,
// as it randomises libraries and stacks high above them and the heap far below.
const (
	farTable = 0x1f1234567000
	farKey   = 0x1f1234560010
	farSpan  = 0x1f1234560020
)

// newChains fills an arena with contexts at random: some lead in circles, to memory that is not there, and to types that are not known.
func newChains(a *arena, r *rand.Rand) *chains {
	c := &chains{a: a, r: r, nodes: arenaData + 0x1000, chain: &fetch.Chain{
		Limit: 1 + r.IntN(6),
		Links: []fetch.Link{
			{Table: 0x1110, Kind: fetch.LinkValue, Parent: 8},
			{Table: farTable, Kind: fetch.LinkParent, Parent: 0},
			{Table: 0xffffffff81234560, Kind: fetch.LinkParent, Parent: 16},
			{Table: 0x99887766, Kind: fetch.LinkParent, Parent: 16},
			{Table: 0x2220, Kind: fetch.LinkRoot},
		},
		KeyType: farKey, Key: 3, KeySize: 1 << r.IntN(4), KeyAt: 24, ValueAt: 40,
		Spans: []fetch.SpanType{{Type: 0x3330, At: 24}, {Type: farSpan, At: 0}, {Type: 0x3340, At: -1}, {Type: 0x3350, At: 24}},
		Trace: 8, Span: 24, Flags: 33, Remote: 32,
	}}
	for i := range uint64(8) {
		a.put64(chainKeys+16*i, []uint64{3, 3, 3, 0, 1 << 56, 0x103, 4, 3}[i], r.Uint64())
	}
	for at := uint64(chainSpans); at < chainSpans+16*128; at += 8 {
		a.put64(at, r.Uint64())
	}
	a.put64(chainSpans+24+8, 0, 0) // a span without a trace
	for i := range uint64(chainNodes) {
		c.node(c.nodes + chainNode*i)
	}
	return c
}

// of picks one of several words; seldom another one.
func (c *chains) of(vs ...uint64) uint64 {
	if c.r.IntN(12) == 0 {
		return strange
	}
	return vs[c.r.IntN(len(vs))]
}

// context makes the two words of a context.
func (c *chains) context() (table, value uint64) {
	table = c.of(0x1110, 0x1110, farTable, 0xffffffff81234560, 0x99887766)
	switch c.r.IntN(24) {
	case 0:
		table = 0x2220
	case 1:
		table = 0
	case 2:
		return table, arenaHole + 8*c.r.Uint64N(64)
	case 3:
		return table, arenaHole - 8*c.r.Uint64N(6) // partly there
	}
	return table, c.nodes + chainNode*c.r.Uint64N(chainNodes)
}

// node fills the value of a context, which may have any type.
func (c *chains) node(at uint64) {
	table, value := c.context()
	c.a.put64(at, table, value)
	table, value = c.context()
	c.a.put64(at+8, table, value)
	if c.r.IntN(3) == 0 { // a parent at 16
		table, value = c.context()
		c.a.put64(at+16, table, value)
	}
	c.a.put64(at+24, c.of(c.chain.KeyType), chainKeys+16*c.r.Uint64N(8))
	c.a.put64(at+40, c.of(0x3330, farSpan, 0x3340, 0x3350, 0), chainSpans+128*c.r.Uint64N(16))
	if c.r.IntN(8) == 0 {
		c.a.put64(at+32, arenaHole)
	}
	if c.r.IntN(8) == 0 {
		c.a.put64(at+48, arenaHole-30)
	}
}

// memoryOf is a model that reads memory which is no stack.
func memoryOf(a *arena) *fetchModel {
	return &fetchModel{a: a, entry: [16]uint64{RSP: arenaDataEnd}}
}

// walk finds what a context carries the slow way.
func (c *chains) walk(table, value uint64) (s fetch.CarriedSpan) {
	m := memoryOf(c.a)
	bad := fetch.CarriedSpan{State: fetch.SpanFault}
	for range c.chain.Limit {
		parent := int64(-1)
		for _, l := range c.chain.Links {
			if l.Table != table {
				continue
			}
			if l.Kind == fetch.LinkRoot {
				return s
			}
			parent = int64(l.Parent)
		}
		switch {
		case table == 0:
			return s
		case parent < 0:
			return fetch.CarriedSpan{State: fetch.SpanStrange}
		}
		if table == c.chain.Links[0].Table {
			typ, ok := m.word(value+uint64(c.chain.KeyAt), spaceAny)
			if !ok {
				return bad
			}
			if typ == c.chain.KeyType {
				at, ok := m.word(value+uint64(c.chain.KeyAt)+8, spaceAny)
				key, there := m.read(at, c.chain.KeySize, spaceAny)
				if !ok || !there {
					return bad
				}
				if little(key) == uint64(c.chain.Key) {
					return c.span(m, value+uint64(c.chain.ValueAt))
				}
			}
		}
		b, ok := m.read(value+uint64(parent), 16, spaceAny)
		if !ok {
			return bad
		}
		table, value = little(b[:8]), little(b[8:])
	}
	return fetch.CarriedSpan{State: fetch.SpanLong}
}

// span is the one that the interface at an address has.
func (c *chains) span(m *fetchModel, at uint64) (s fetch.CarriedSpan) {
	b, ok := m.read(at, 16, spaceAny)
	if !ok {
		return fetch.CarriedSpan{State: fetch.SpanFault}
	}
	typ, value := little(b[:8]), little(b[8:])
	if typ == 0 {
		return s
	}
	s.State = fetch.SpanStrangeOne
	for _, t := range c.chain.Spans {
		if t.Type != typ {
			continue
		}
		if t.At < 0 {
			return fetch.CarriedSpan{}
		}
		b, ok := m.read(value+uint64(t.At), 34, spaceAny)
		if !ok {
			return fetch.CarriedSpan{State: fetch.SpanFault}
		}
		s = fetch.CarriedSpan{State: fetch.SpanFound, Trace: [16]byte(b[8:24]), Span: [8]byte(b[24:32]), Remote: b[32] != 0, Flags: b[33]}
		if s.Trace == ([16]byte{}) || s.Span == ([8]byte{}) {
			return fetch.CarriedSpan{}
		}
	}
	return s
}

// TestDetourChains has contexts in registers and in memory gone through, at a function's entry, for a record there and for one at the return, and
// compares with a model what they carry.
func TestDetourChains(t *testing.T) {
	child := buildDetourChild(t)
	seen := map[fetch.SpanState]int{}
	for vi, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(41, uint64(vi)))
			for range 30 {
				a := newArena(t, child)
				v.set(a)
				testChains(newChains(a, r), seen)
				if t.Failed() {
					return
				}
			}
		})
	}
	for s := fetch.SpanNone; s <= fetch.SpanStrangeOne; s++ {
		if seen[s] < 20 {
			t.Errorf("state %d was seen %d times", s, seen[s])
		}
	}
}

func testChains(c *chains, seen map[fetch.SpanState]int) {
	a := c.a
	a.t.Helper()
	args := []fetch.Arg{
		{Name: "regs", Store: fetch.StoreSpan, Chain: ChainCode(c.chain), Base: fetch.Base{Reg: fetch.Reg(RDI)}, Len: fetch.Base{Reg: fetch.Reg(RSI)}, Size: 8},
		{Name: "mem", Store: fetch.StoreSpan, Chain: ChainCode(c.chain), Base: fetch.Base{Reg: fetch.Reg(R9)}, Derefs: []int64{8, 8}, Size: 8, Off: fetch.SpanSize},
		{Name: "n", Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(R10)}, Size: 8, Off: 2 * fetch.SpanSize},
	}
	prog := &fetch.Program{Args: args, Fixed: 2*fetch.SpanSize + 8}
	exit := &fetch.Program{Fixed: prog.Fixed, Return: true}
	for i, arg := range args {
		arg.AtEntry = true
		for n := range fetch.SpanSize / 8 * (1 - i/2) {
			reg := []fetch.Reg{arg.Base.Reg, arg.Len.Reg}[n%2]
			arg.Saved = append(arg.Saved, fetch.Base{Kind: fetch.BaseSpan, N: n, Imm: uint64(i), Reg: reg})
		}
		exit.Args = append(exit.Args, arg)
	}
	pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(len(exit.EntryBases()))}
	work := map[uint64][]arch.ProbeOp{
		0:         {{Event: 1, Prog: prog}, {Event: 2, Role: arch.RoleEntry, Prog: exit, Pool: pool}},
		carryExit: {{Event: 2, Role: arch.RoleExit, Prog: exit, Pool: pool, Instance: 2}},
	}
	a.probe(hexBytes(a.t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
	a.handler()
	a.ctl.Hole = arenaHole
	for i := range uint64(12) {
		regs, flags := a.state(c.r)
		regs[RDI], regs[RSI] = c.context()
		regs[R9], regs[R10] = chainSpans+0x1000+16*i, i
		a.put64(regs[R9]+8, c.nodes+chainNode*c.r.Uint64N(chainNodes)-8)
		if c.r.IntN(8) == 0 {
			regs[R9] = arenaHole - 8
		}
		a.add(regs, flags)
	}
	a.run()
	recs := a.records()
	if len(recs) != len(a.runs) {
		a.t.Fatalf("%d records, want %d", len(recs), len(a.runs))
	}
	for i := range recs {
		run := &a.runs[i/2*2+1]
		p, w := prog, &work[0][0]
		if i%2 == 1 {
			p, w = exit, &work[carryExit][0]
		}
		vs, err := p.Decode(recs[i].rec, int(ArgsOffset(&a.w, w)), "")
		if err != nil {
			a.t.Fatal(err)
		}
		want := []fetch.CarriedSpan{c.walk(run.Regs[RDI], run.Regs[RSI]), {State: fetch.SpanFault}}
		if at, ok := memoryOf(a).word(run.Regs[R9]+8, spaceAny); ok {
			if b, ok := memoryOf(a).read(at+8, 16, spaceAny); ok {
				want[1] = c.walk(little(b[:8]), little(b[8:]))
			}
		}
		for j := range want {
			if got := fetch.DecodeSpan(&vs[j]); got != want[j] || vs[2].Num != run.Regs[R10] {
				a.t.Errorf("run %d, argument %d of record %d: %+v, want %+v", vs[2].Num, j, i, got, want[j])
			}
			seen[want[j].State]++
		}
	}
}
