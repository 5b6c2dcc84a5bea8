package debuginfo

import (
	"debug/dwarf"
	"fmt"
	"slices"
)

// At describes the function that the instruction at a link-time address lies in, which may be one that was inlined there: Params has the
// variables of the blocks, of the inlined calls and of the function around the instruction, with their places there. The innermost comes
// first, and hides others of its name. ErrNone: there is none.
func (f *File) At(pc uint64) (*Func, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return nil, err
	}
	for u := range f.unitsAt(pc) {
		if off, ok := f.holding(w, u, pc); ok {
			return f.at(w, u, off, pc)
		}
	}
	return nil, fmt.Errorf("nothing at 0x%x: %w", pc, ErrNone)
}

// at is At for an instruction of the function whose entry is at off.
func (f *File) at(w *walk, u *unit, off dwarf.Offset, pc uint64) (*Func, error) {
	top, _, err := w.at(off)
	if err != nil {
		return nil, err
	}
	base, _ := top.Val(dwarf.AttrFrameBase).([]byte)
	blocks, err := w.blocksAt(top, pc)
	if err != nil {
		return nil, err
	}
	fn := &Func{Lang: u.lang()}
	for _, b := range slices.Backward(blocks) {
		if err := fn.variables(w, u, b, frame{base, true}, pc); err != nil {
			return nil, err
		}
		if b.Tag != dwarf.TagLexDwarfBlock && fn.Name == "" {
			fn.Name = w.name(b)
		}
	}
	return fn, nil
}

// variables adds the variables of a block that have no name of one that is there.
func (fn *Func) variables(w *walk, u *unit, block *dwarf.Entry, in frame, pc uint64) error {
	if !block.Children {
		return nil
	}
	_, r, err := w.at(block.Offset)
	if err != nil {
		return err
	}
	inner := len(fn.Params)
	return w.children(r, func(e *dwarf.Entry) error {
		if e.Tag != dwarf.TagFormalParameter && e.Tag != dwarf.TagVariable {
			return nil
		}
		name := w.name(e)
		at := slices.IndexFunc(fn.Params, func(p Param) bool { return p.Name == name })
		switch {
		case name == "":
			return nil
		case e.Tag == dwarf.TagFormalParameter && fn.Name == "" && !slices.Contains(fn.Inner, name):
			fn.Inner = append(fn.Inner, name)
		}
		switch {
		case at >= 0 && at < inner:
			return nil
		case len(fn.Params) >= maxParams:
			return fmt.Errorf("more than %d variables: %w", maxParams, ErrLimit)
		}
		p := Param{Name: name, Type: w.typ(e)}
		p.At, p.Why = w.f.placeAt(u, e, in, pc)
		switch {
		case at < 0:
			fn.Params = append(fn.Params, p)
		case len(fn.Params[at].At) == 0: // Go and inlining list some twice
			fn.Params[at] = p
		}
		return nil
	})
}

// blocksAt gives the entries that an instruction of a function lies in: the function, blocks and calls that were inlined, the outermost
// first.
func (w *walk) blocksAt(top *dwarf.Entry, pc uint64) ([]*dwarf.Entry, error) {
	blocks := []*dwarf.Entry{top}
	for range maxInlined {
		last := blocks[len(blocks)-1]
		if !last.Children {
			return blocks, nil
		}
		_, r, err := w.at(last.Offset)
		if err != nil {
			return blocks, err
		}
		var in *dwarf.Entry
		err = w.children(r, func(c *dwarf.Entry) error {
			if in != nil || c.Tag != dwarf.TagInlinedSubroutine && c.Tag != dwarf.TagLexDwarfBlock {
				return nil
			}
			rs, err := w.ranges(c)
			if slices.ContainsFunc(rs, func(r [2]uint64) bool { return pc >= r[0] && pc < r[1] }) {
				in = c
			}
			return err
		})
		if err != nil || in == nil {
			return blocks, err
		}
		blocks = append(blocks, in)
	}
	return blocks, nil
}

// maxInlined bounds how deep blocks and inlined calls lie in one another.
const maxInlined = 256
