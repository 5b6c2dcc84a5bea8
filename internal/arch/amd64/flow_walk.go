package amd64

import "slices"

// walk follows the flow from the addresses of work.
func (fl *Flow) walk(work []uint64, swept bool) {
	for len(work) > 0 {
		a := work[len(work)-1]
		work = fl.block(a, swept, work[:len(work)-1])
	}
}

// block decodes from a until control cannot go on, and appends the branch targets that
// it finds to work.
func (fl *Flow) block(a uint64, swept bool, work []uint64) []uint64 {
	for {
		p, off := fl.place(a)
		if p == nil || p.mark[off]&markBad != 0 {
			return work
		}
		id := p.at[off] - 1
		switch {
		case id < 0:
			if id = fl.decode(p, off, swept); id < 0 {
				return work
			}
		case swept || !fl.nodes[id].swept:
			return work
		default:
			fl.nodes[id].swept = false
		}
		n := &fl.nodes[id]
		if t, ok := fl.branch(n); ok {
			work = append(work, t)
		}
		if !n.falls {
			return work
		}
		a = n.end()
	}
}

// branch gives the target of a direct branch or call that stays inside, and marks it.
func (fl *Flow) branch(n *flowNode) (uint64, bool) {
	t, ok := branchTarget(n)
	if !ok || !fl.inside(t) {
		return 0, false
	}
	m := markTarget
	if n.in.Kind == KindCall {
		m |= markEntry
	}
	fl.setMark(t, m)
	return t, true
}

// branchTarget gives where a direct branch or call goes.
func branchTarget(n *flowNode) (uint64, bool) {
	switch n.in.Kind {
	case KindJmp, KindJcc, KindLoop, KindXbegin, KindCall:
		return n.in.Target(n.addr)
	}
	return 0, false
}

// decode adds the node at off, or marks the place as bad.
func (fl *Flow) decode(p *flowPart, off uint64, swept bool) int32 {
	in, err := Decode(p.code[off:])
	if err != nil {
		p.mark[off] |= markBad
		fl.bad = append(fl.bad, badPlace{p.addr + off, err})
		return noNode
	}
	return fl.add(p, off, in, swept)
}

func (fl *Flow) add(p *flowPart, off uint64, in Inst, swept bool) int32 {
	id := int32(len(fl.nodes))
	fl.nodes = append(fl.nodes, flowNode{addr: p.addr + off, in: in, next: noNode, jump: noNode, swept: swept})
	n := &fl.nodes[id]
	n.falls = fl.falls(n, p.code[off+uint64(in.Len):])
	p.at[off] = id + 1
	if in.Kind == KindJmpInd {
		fl.jumpAt[id] = len(fl.jumps)
		fl.jumps = append(fl.jumps, &indirect{node: id})
	}
	return id
}

// falls says whether control may go on behind n; rest is the code there.
func (fl *Flow) falls(n *flowNode, rest []byte) bool {
	switch n.in.Kind {
	case KindJmp, KindJmpInd, KindRet, KindUndef, KindHlt:
		return false
	case KindFar:
		return farCall(&n.in)
	case KindInt3:
		return len(rest) > 0 && rest[0] != 0xcc
	case KindCall:
		if t, ok := n.in.Target(n.addr); ok && fl.fn.NoReturn != nil && fl.fn.NoReturn(t) {
			return false
		}
		return !fl.nothingBehind(rest)
	case KindCallInd, KindSyscall:
		return !fl.nothingBehind(rest)
	}
	return true
}

// nothingBehind says whether what follows a call is no code of the function. In Go int3
// is nothing but padding.
func (fl *Flow) nothingBehind(rest []byte) bool {
	if fl.fn.Go && len(rest) > 0 && rest[0] == 0xcc {
		return true
	}
	return padding(rest) == len(rest)
}

// farCall says whether a far instruction is a call, FF /3: control comes back.
func farCall(in *Inst) bool {
	return in.Map == MapOne && in.Opcode == 0xff && in.ModRM>>3&7 == 3
}

// padding counts the bytes at the start of code that compilers, assemblers and linkers
// put between code: nops, int3 and zeros.
func padding(code []byte) int {
	n := 0
	for n < len(code) {
		l := padLen(code[n:])
		if l == 0 {
			break
		}
		n += l
	}
	return n
}

func padLen(code []byte) int {
	switch code[0] {
	case 0xcc, 0x90:
		return 1
	case 0x00:
		if len(code) == 1 || code[1] == 0 {
			return min(len(code), 2)
		}
		return 0
	}
	in, err := Decode(code)
	if err != nil || !isNop(&in) {
		return 0
	}
	return int(in.Len)
}

// isNop recognises 90 and 0F 1F with any prefixes, and the xchg and lea forms that
// older assemblers pad with.
func isNop(in *Inst) bool {
	if in.Enc != EncLegacy {
		return false
	}
	switch {
	case in.Map == MapOne && in.Opcode == 0x90:
		return in.Rex&1 == 0 && in.Prefix&PrefixRep == 0
	case in.Map == Map0F && in.Opcode == 0x1f:
		return true
	case in.Map == MapOne && in.Opcode == 0x87:
		return in.Mod() == 3 && in.Reg() == in.RM() && in.Prefix&PrefixOpSize != 0
	case in.Map == MapOne && in.Opcode == 0x8d:
		return in.W() && in.Reg() == byte(RSI) && zeroDispSelf(in)
	}
	return false
}

// zeroDispSelf recognises lea 0(%rsi),%rsi and lea 0(%rsi,%riz),%rsi by ModRM, SIB and
// a displacement that is all there is.
func zeroDispSelf(in *Inst) bool {
	self := in.HasSIB && in.SIB == 0x26 || !in.HasSIB && in.RM() == byte(RSI)
	return self && in.Mod() != 3 && in.Mod() != 0 && in.DispLen == 4
}

// link fills in the edges between nodes.
func (fl *Flow) link() {
	fl.linked = true
	for i := range fl.nodes {
		n := &fl.nodes[i]
		n.next, n.jump = noNode, noNode
		if n.falls {
			n.next = fl.node(n.end())
		}
		if t, ok := branchTarget(n); ok && n.in.Kind != KindCall {
			n.jump = fl.node(t)
		}
	}
	fl.linkBack()
}

// linkLate is link for those who come after Analyse.
func (fl *Flow) linkLate() {
	if !fl.linked {
		fl.link()
	}
}

// linkBack builds the lists of predecessors: those of node i are
// predList[predIdx[i]:predIdx[i+1]].
func (fl *Flow) linkBack() {
	idx := zeroed(fl.predIdx, len(fl.nodes)+2)
	for i := range fl.nodes {
		for s := range fl.succs(int32(i)) {
			idx[s+2]++
		}
	}
	for i := 2; i < len(idx); i++ {
		idx[i] += idx[i-1]
	}
	// idx[s+1] is where the list of s begins, and runs to its end as that is filled.
	fl.predList = zeroed(fl.predList, int(idx[len(idx)-1]))
	for i := range fl.nodes {
		for s := range fl.succs(int32(i)) {
			fl.predList[idx[s+1]] = int32(i)
			idx[s+1]++
		}
	}
	fl.predIdx = idx
}

func (fl *Flow) preds(id int32) []int32 {
	return fl.predList[fl.predIdx[id]:fl.predIdx[id+1]]
}

// succs walks over the nodes that control may go to from id.
func (fl *Flow) succs(id int32) func(yield func(int32) bool) {
	return func(yield func(int32) bool) {
		n := &fl.nodes[id]
		if n.next >= 0 && !yield(n.next) || n.jump >= 0 && !yield(n.jump) {
			return
		}
		if n.in.Kind != KindJmpInd {
			return
		}
		for _, t := range fl.jumps[fl.jumpAt[id]].targets {
			if s := fl.node(t); s >= 0 && !yield(s) {
				return
			}
		}
	}
}

// sort puts the nodes in the order of addresses.
func (fl *Flow) sort() {
	fl.order = slices.Grow(fl.order[:0], len(fl.nodes))
	for i := range fl.parts {
		for _, id := range fl.parts[i].at {
			if id > 0 {
				fl.order = append(fl.order, id-1)
			}
		}
	}
}

// sweep decodes what lies between the instructions found so far and takes what fits
// exactly. It says whether it found any.
func (fl *Flow) sweep() bool {
	found := false
	for i := range fl.parts {
		p := &fl.parts[i]
		for s := uint64(0); s < uint64(len(p.code)); {
			if id := p.at[s] - 1; id >= 0 {
				s += fl.stride(p, s)
				continue
			}
			e := s
			for e < uint64(len(p.code)) && p.at[e] == 0 {
				e++
			}
			found = fl.sweepGap(p, s, e) || found
			s = e
		}
	}
	return found
}

// stride is how far the instruction at s reaches, over those that overlap it.
func (fl *Flow) stride(p *flowPart, s uint64) uint64 {
	n := uint64(1)
	for d := uint64(0); d < n && s+d < uint64(len(p.at)); d++ {
		if id := p.at[s+d] - 1; id >= 0 {
			n = max(n, d+uint64(fl.nodes[id].in.Len))
		}
	}
	return n
}

// sweepGap takes the bytes from s to e of a part as code, if they are.
func (fl *Flow) sweepGap(p *flowPart, s, e uint64) bool {
	s += uint64(padding(p.code[s:e]))
	if s >= e || p.mark[s]&markBad != 0 {
		return false
	}
	ins, ok := fl.fits(p, s, e)
	if !ok {
		return false
	}
	start := p.addr + s
	p.mark[s] |= markTarget | markEntry
	if fl.fn.Go {
		fl.walk([]uint64{start}, false)
	}
	var work []uint64
	for i := range ins {
		if p.at[s] == 0 {
			id := fl.add(p, s, ins[i], true)
			if t, ok := fl.branch(&fl.nodes[id]); ok {
				work = append(work, t)
			}
		}
		s += uint64(ins[i].Len)
	}
	fl.walk(work, true)
	return true
}

// ends says whether control never goes on behind an instruction.
func ends(in *Inst) bool {
	return in.Kind == KindJmp || in.Kind == KindJmpInd || in.Kind == KindRet || in.Kind == KindUndef
}

// fits decodes the bytes from s to e, but for padding at the end, and says whether they end
// there and all branches go to where an instruction starts or nothing is known.
func (fl *Flow) fits(p *flowPart, s, e uint64) ([]Inst, bool) {
	var ins []Inst
	start := map[uint64]bool{}
	for o := s; o < e; {
		in, err := Decode(p.code[o:e])
		if err != nil {
			return nil, false
		}
		start[p.addr+o] = true
		ins = append(ins, in)
		o += uint64(in.Len)
		if ends(&in) && uint64(padding(p.code[o:e])) == e-o {
			break
		}
	}
	a := p.addr + s
	for i := range ins {
		n := flowNode{addr: a, in: ins[i]}
		a += uint64(ins[i].Len)
		if t, ok := branchTarget(&n); ok && !start[t] && fl.clash(t, p.addr+s, p.addr+e) {
			return nil, false
		}
	}
	return ins, true
}

// clash says whether t, not the start of an instruction of the gap from s to e, cannot
// be a branch target.
func (fl *Flow) clash(t, s, e uint64) bool {
	if t >= s && t < e {
		return true
	}
	if !fl.inside(t) || fl.node(t) >= 0 {
		return false
	}
	_, covered := fl.cover(t)
	return covered
}
