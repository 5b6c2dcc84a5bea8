package amd64

import (
	"encoding/binary"
	"slices"
)

// Limits of jump tables: the entries of one, and of all tables of a function.
const (
	maxTableEntries = 1 << 16
	maxTableTargets = 1 << 19
)

// maxResolveRounds bounds how often the tables found lead to code with further indirect
// jumps. Each round but the last finds new code or new targets.
const maxResolveRounds = 64

// jumpState is what is known of an indirect jump.
type jumpState uint8

const (
	jumpUnknown jumpState = iota // not resolved yet, or not to be resolved
	jumpTable                    // all targets are known
	jumpTail                     // leaves the function
)

// indirect is an indirect jump.
type indirect struct {
	node    int32
	state   jumpState
	targets []uint64 // inside, sorted
	outside []uint64 // sorted
	shape   jumpShape
	labels  bool // targets holds the labels whose addresses the function takes
	bounded bool // every table's extent follows from a bounds check
}

// jumpShape is what the target of an unresolved jump was computed from.
type jumpShape uint8

const (
	shapeOther    jumpShape = iota // a register, or a pointer in memory
	shapeGlobal                    // a pointer at a fixed address: GOT entry or variable
	shapeTable                     // an entry of a table at a fixed address
	shapePointers                  // an entry of a table of pointers to outside
	shapeOffsets                   // the sum of a base and a table's entry
)

// IndirectJump is what was found out about one indirect jump.
type IndirectJump struct {
	Addr    uint64
	Tail    bool     // leaves the function
	Targets []uint64 // where it may go inside the function
	Outside []uint64 // known targets outside
	Bounded bool     // a bounds check tells how long its table is
}

// Resolved says whether all ways that the jump may take are known.
func (j *IndirectJump) Resolved() bool { return j.Tail || len(j.Targets)+len(j.Outside) > 0 }

// IndirectJumps lists the indirect jumps in the order found.
func (fl *Flow) IndirectJumps() []IndirectJump {
	var out []IndirectJump
	for i := range fl.jumps {
		j := &fl.jumps[i]
		out = append(out, IndirectJump{
			Addr: fl.nodes[j.node].addr, Tail: j.state == jumpTail, Bounded: j.bounded,
			Targets: slices.Clone(j.targets), Outside: slices.Clone(j.outside),
		})
	}
	return out
}

// exit says how the jump leaves the function, if it does.
func (j *indirect) exit() (Exit, bool) {
	e := Exit{Kind: ExitIndirectTail}
	if len(j.outside) == 1 {
		e.Target = j.outside[0]
	}
	if len(j.targets) > 0 {
		e.Kind = ExitTableJmp
	}
	return e, j.state == jumpTail || len(j.outside) > 0
}

// resolveJumps finds the targets of the indirect jumps and follows them, until nothing
// new turns up.
func (fl *Flow) resolveJumps() {
	for range maxResolveRounds {
		if len(fl.jumps) == 0 {
			return
		}
		fl.link()
		r := &resolver{fl: fl, seen: make([]int32, len(fl.nodes))}
		changed := false
		for i := range fl.jumps {
			changed = r.resolve(&fl.jumps[i]) || changed
		}
		if !changed && !fl.followLabels() {
			return
		}
		fl.walkTables()
	}
	for i := range fl.jumps {
		fl.jumps[i].state = jumpUnknown
	}
}

// walkTables follows the targets of all indirect jumps.
func (fl *Flow) walkTables() {
	for i := range fl.jumps {
		j := fl.jumps[i]
		for _, t := range j.targets {
			fl.setMark(t, markTarget)
			fl.walk([]uint64{t}, fl.nodes[j.node].swept)
		}
	}
}

// resolve finds the targets of j and says whether there are more than before.
func (r *resolver) resolve(j *indirect) bool {
	g := &tableReader{fl: r.fl, bounded: true}
	r.steps = 0
	ok := true
	for _, v := range r.jumpValues(j) {
		ok = r.takeTargets(g, j, v) && ok
	}
	j.state = jumpUnknown
	if ok {
		j.state = jumpTable
	}
	j.bounded = ok && g.bounded
	return j.merge(g)
}

// jumpValues computes where j may go. The result has at least one element.
func (r *resolver) jumpValues(j *indirect) []tableValue {
	n := &r.fl.nodes[j.node]
	switch {
	case n.in.Enc != EncLegacy || n.in.Ext != 0:
		return unknownValue()
	case n.in.HasMem():
		a, ok := r.fl.operand(n)
		if !ok {
			return unknownValue()
		}
		return r.load(a, j.node, 8, false)
	}
	return r.reg(Reg(n.in.RM()), j.node, 0)
}

// takeTargets adds what v stands for to g and says whether that is all it can be.
func (r *resolver) takeTargets(g *tableReader, j *indirect, v tableValue) bool {
	switch {
	case v.kind == valConst:
		g.take(v.c)
		return true
	case v.kind == valLoad && v.mult == 0 && v.c == 0:
		j.shape = shapeGlobal
		g.slot(v)
		return false
	case v.kind == valLoad && v.mult == 0: // a table of offsets and a constant index
		return g.read(v, bound{known: true, strict: true})
	case v.kind == valLoad:
		if j.shape = shapeTable; v.c != 0 {
			j.shape = shapeOffsets
		}
		ok := g.read(v, r.bound(v.idx, v.at))
		if g.foreign {
			j.shape = shapePointers
		}
		return ok
	}
	return false
}

// merge takes over what g found.
func (j *indirect) merge(g *tableReader) bool {
	had := len(j.targets) + len(j.outside)
	j.targets = sortedSet(append(j.targets, g.in...))
	j.outside = sortedSet(append(j.outside, g.out...))
	return len(j.targets)+len(j.outside) > had
}

func sortedSet(s []uint64) []uint64 {
	slices.Sort(s)
	return slices.Compact(s)
}

// tableReader reads jump tables.
type tableReader struct {
	fl      *Flow
	in, out []uint64
	bounded bool
	foreign bool // the first entry of a table of pointers is one to outside
	buf     [8]byte
}

// take adds a target and says whether it is inside the function.
func (g *tableReader) take(t uint64) bool {
	if g.fl.inside(t) {
		g.in = append(g.in, t)
		return true
	}
	if g.fl.isCode(t) {
		g.out = append(g.out, t)
	}
	return false
}

// isCode says whether an address outside belongs to a function.
func (fl *Flow) isCode(addr uint64) bool {
	if fl.fn.Inside == nil {
		return false
	}
	_, ok := fl.fn.Inside(addr)
	return ok
}

// slot looks at a pointer at a fixed address. That of a lazily bound PLT entry points
// back behind the jump.
func (g *tableReader) slot(v tableValue) {
	if t, ok := g.entry(v, 0); ok && g.fl.inside(t) {
		g.in = append(g.in, t)
	}
}

// entry reads the i-th entry of v's table and computes the target.
func (g *tableReader) entry(v tableValue, i uint64) (uint64, bool) {
	if g.fl.fn.Mem == nil {
		return 0, false
	}
	b := g.buf[:v.width]
	if g.fl.fn.Mem(v.table+i*v.mult, b) != nil {
		return 0, false
	}
	switch v.width {
	case 8:
		return v.c + binary.LittleEndian.Uint64(b), true
	case 4:
		e := binary.LittleEndian.Uint32(b)
		if v.signed {
			return v.c + uint64(int64(int32(e))), true
		}
		return v.c + uint64(e), true
	}
	return 0, false
}

// read reads the table of v and says whether it gave targets.
//
// A strict bound comes from a comparison: all entries up to it count, wherever they
// point, since a table may be shorter than what the comparison lets through (the
// compiler knew better) but never longer. Without one the entries count as long as they
// point to where an instruction of the function may start.
func (g *tableReader) read(v tableValue, b bound) bool {
	if v.mult < uint64(v.width) && v.mult != 0 {
		if v.mult != 1 {
			return false
		}
		v.mult, b = uint64(v.width), bound{}
	}
	limit := uint64(maxTableEntries)
	if b.known {
		limit = min(limit, b.max+1)
	}
	n := 0
	for i := range limit {
		t, ok := g.entry(v, i)
		if i == 0 && ok && v.c == 0 && t >= minAddress && !g.fl.inside(t) {
			g.foreign = true
		}
		if !ok || !b.strict && !g.fl.plausible(t) {
			break
		}
		if g.take(t) {
			n++
		}
		if len(g.in) > maxTableTargets {
			return false
		}
	}
	g.bounded = g.bounded && b.strict
	return n > 0
}

// plausible says whether t may be the start of an instruction.
func (fl *Flow) plausible(t uint64) bool {
	p, off := fl.place(t)
	if p == nil || p.mark[off]&markBad != 0 {
		return false
	}
	_, covered := fl.cover(t)
	return !covered || p.at[off] != 0
}
