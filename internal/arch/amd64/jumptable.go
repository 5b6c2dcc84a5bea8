package amd64

import (
	"encoding/binary"
	"slices"
)

// maxTableEntries bounds what is read of one jump table.
const maxTableEntries = 1 << 16

// maxEffort bounds the resolution of all jumps of a function, in steps of a few
// nanoseconds each: instructions looked at and table entries read. What is unresolved
// then stays so. The greatest functions of gdb and of CPython take less than a tenth.
const maxEffort = 1 << 23

// spend takes n from what is left of the effort and says whether it was there.
func (fl *Flow) spend(n int) bool {
	fl.effort += n
	return fl.effort <= maxEffort
}

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
	for _, j := range fl.jumps {
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
		if len(fl.jumps) == 0 || !fl.spend(len(fl.nodes)) {
			break
		}
		fl.link()
		if !fl.readTables() && !fl.followLabels() {
			if fl.effort > maxEffort {
				break
			}
			return
		}
		fl.walkTables()
	}
	for _, j := range fl.jumps { // not done: what was found may not be all
		j.state = jumpUnknown
	}
}

// walkTables follows the targets of all indirect jumps.
func (fl *Flow) walkTables() {
	for _, j := range slices.Clone(fl.jumps) {
		for _, t := range j.targets {
			fl.setMark(t, markTarget)
			fl.walk([]uint64{t}, fl.nodes[j.node].swept)
		}
	}
}

// readTables finds the targets of all indirect jumps and says whether there are more than
// before.
func (fl *Flow) readTables() bool {
	r := fl.lookback()
	values := make([][]tableValue, len(fl.jumps))
	g := &tableReader{fl: fl}
	for i := range fl.jumps {
		values[i] = r.jumpValues(fl.jumps[i])
		for _, v := range values[i] {
			if v.kind == valLoad {
				g.bases = append(g.bases, v.table)
			}
		}
	}
	g.bases = sortedSet(g.bases)
	changed := false
	for i, vs := range values {
		changed = r.resolve(g, fl.jumps[i], vs) || changed
	}
	return changed
}

// resolve finds the targets of j and says whether there are more than before.
//
// Where some paths lead to a table and others to something unknown, the others are left
// out: a compiler reads a switch's table through no other base than its address. Such
// paths lead on behind calls that don't come back.
func (r *lookback) resolve(g *tableReader, j *indirect, vs []tableValue) bool {
	g.in, g.out, g.strict, g.swept = nil, nil, true, r.fl.nodes[j.node].swept
	j.state = jumpUnknown
	for _, v := range vs {
		if r.takeTargets(g, j, v) {
			j.state = jumpTable
		}
	}
	j.bounded = j.state == jumpTable && g.strict
	return j.merge(g)
}

// jumpValues computes where j may go. The result has at least one element.
func (r *lookback) jumpValues(j *indirect) []tableValue {
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

// takeTargets adds what v stands for to g and says whether v stands for targets.
func (r *lookback) takeTargets(g *tableReader, j *indirect, v tableValue) bool {
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
	bases   []uint64 // of all tables of the function, sorted
	in, out []uint64
	strict  bool // all tables read end by a bounds check
	swept   bool // the jump was found by the sweep
	foreign bool // the table read last has pointers to outside
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
// point to where an instruction of the function may start and no other table begins.
func (g *tableReader) read(v tableValue, b bound) bool {
	if v.mult < uint64(v.width) && v.mult != 0 {
		if v.mult != 1 {
			return false
		}
		v.mult, b = uint64(v.width), bound{}
	}
	n, in, out := g.limit(v, b), len(g.in), len(g.out)
	g.foreign = false
	for i := range n {
		t, ok := g.entry(v, i)
		if ok = ok && g.fl.spend(entryEffort); !ok || !g.fl.plausible(t) && (i == 0 || !b.strict) && !g.pointsOut(v, t) {
			break
		}
		if g.take(t) && !b.strict {
			g.fl.setMark(t, markTarget)
			g.fl.walk([]uint64{t}, g.swept) // what it covers is no target
		}
	}
	if len(g.in) == in || len(g.in)-in == maxTableEntries {
		g.foreign = len(g.out) > out && v.c == 0
		g.in, g.out = g.in[:in], g.out[:out]
		return false
	}
	g.strict = g.strict && b.strict
	return true
}

// pointsOut says whether t, an entry of v, is code outside.
func (g *tableReader) pointsOut(v tableValue, t uint64) bool {
	return !g.fl.inside(t) && (g.fl.isCode(t) || v.c == 0 && t >= minAddress && g.fl.fn.Inside == nil)
}

// entryEffort is what reading and checking one entry costs.
const entryEffort = 16

// limit is how many entries of v are read.
func (g *tableReader) limit(v tableValue, b bound) uint64 {
	n := uint64(maxTableEntries)
	if b.known {
		n = min(n, b.max+1)
	}
	if b.strict || v.mult == 0 {
		return n
	}
	if i, _ := slices.BinarySearch(g.bases, v.table+1); i < len(g.bases) {
		n = min(n, max(1, (g.bases[i]-v.table)/v.mult))
	}
	return n
}

// maxTrial is how many instructions are decoded to see whether an address holds code.
const maxTrial = 32

// plausible says whether t may be the start of an instruction: what stands there decodes,
// joins what is decoded already at its boundaries, and branches to such places or to
// functions.
func (fl *Flow) plausible(t uint64) bool {
	for range maxTrial {
		p, off := fl.place(t)
		if p == nil || p.mark[off]&markBad != 0 {
			return false
		}
		if p.at[off] != 0 {
			return true
		}
		if _, covered := fl.cover(t); covered {
			return false
		}
		in, err := Decode(p.code[off:])
		if err != nil || !fl.plausibleBranch(&flowNode{addr: t, in: in}) {
			return false
		}
		switch in.Kind {
		case KindJmp, KindJmpInd, KindRet, KindUndef, KindHlt, KindCall, KindCallInd:
			return true
		case KindFar, KindInt:
			return false
		}
		t += uint64(in.Len)
	}
	return true
}

// plausibleBranch says whether a direct branch, if n is one, goes to where code may be.
func (fl *Flow) plausibleBranch(n *flowNode) bool {
	t, ok := branchTarget(n)
	switch {
	case !ok || fl.node(t) >= 0:
		return true
	case fl.inside(t):
		_, covered := fl.cover(t)
		return !covered
	}
	return fl.fn.Inside == nil || fl.isCode(t)
}
