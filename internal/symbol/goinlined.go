package symbol

import "encoding/binary"

// GoInlined is the number of calls of a Go function that were inlined in functions of the image, by the pclntab, which stripped
// programs have too; ok is false if that does not tell: it is not Go's, or of a toolchain before Go 1.20.
func (im *Image) GoInlined(name string) (calls int, ok bool) {
	counts, err := im.inlined.Get(func() (*map[string]int, error) {
		p, err := im.pclnData()
		if err != nil || p.idOff != 40 {
			return nil, err
		}
		counts := map[uint32]int{}
		for i := range p.nfunc {
			if f := p.at(i); f != nil {
				g := goLiner{im: im, p: p, f: f}
				g.countInlined(counts)
			}
		}
		named := make(map[string]int, len(counts))
		for off, n := range counts {
			if name, ok := cstring(p.names, uint64(off)); ok {
				named[name] += n
			}
		}
		return &named, nil
	})
	if err != nil || counts == nil {
		return 0, false
	}
	return (*counts)[name], true
}

// countInlined counts the calls that were inlined in the function, by their names. They are those that code belongs to, and those around
// them: a call's number is less than those of the calls in it.
func (g *goLiner) countInlined(counts map[uint32]int) {
	tree, ok := g.tree()
	if !ok {
		return
	}
	for n := range min(g.most(inlTreeValue)+1, maxInlinedIn) {
		name, _, ok := g.im.inlinedCallAt(tree, n)
		if !ok {
			return
		}
		counts[name]++
	}
}

// maxInlinedIn bounds the calls inlined in one function.
const maxInlinedIn = 1 << 16

// most is the largest value of one of the function's tables; -1: there is none.
func (g *goLiner) most(table int) int64 {
	le := binary.LittleEndian
	at := funcSize + 4*uint64(table)
	if uint32(table) >= le.Uint32(g.f[funcNpcdata:]) || at+4 > uint64(len(g.f)) {
		return -1
	}
	off := le.Uint32(g.f[at:])
	if off == 0 || uint64(off) >= uint64(len(g.p.pctab)) {
		return -1
	}
	c := &cursor{b: g.p.pctab, pos: int(off)}
	v, most := int64(-1), int64(-1)
	for first := true; ; first = false {
		d := c.uleb()
		if d == 0 && !first || c.bad {
			return most
		}
		v += int64(d>>1) ^ -int64(d&1)
		most = max(most, v)
		if c.uleb(); c.bad {
			return most
		}
	}
}

// at is the _func of the nth function, and what is behind; nil: it lies outside.
func (p *pclnData) at(i int) []byte {
	off := uint64(binary.LittleEndian.Uint32(p.tab[8*i+4:]))
	if off+funcSize > uint64(len(p.tab)) {
		return nil
	}
	return p.tab[off:]
}

// pclnData is the image's function table.
func (im *Image) pclnData() (*pclnData, error) {
	return im.pcln.Get(func() (*pclnData, error) {
		at, b, err := im.elf.findPclntab()
		if err != nil {
			return nil, err
		}
		return im.elf.parsePclntab(at, b)
	})
}
