package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"slices"
)

// Lang is the language of a unit, as far as it decides what its types mean.
type Lang uint8

// Languages.
const (
	LangOther Lang = iota
	LangC
	LangCxx
	LangRust
	LangGo
)

// languages has DW_LANG_* (DWARF 5, 7.12).
var languages = map[int64]Lang{
	0x01: LangC, 0x02: LangC, 0x0c: LangC, 0x1d: LangC, 0x2c: LangC,
	0x04: LangCxx, 0x1a: LangCxx, 0x21: LangCxx, 0x2b: LangCxx,
	0x16: LangGo, 0x1c: LangRust,
}

// Func is what is told of a function.
type Func struct {
	Name     string
	Lang     Lang
	Params   []Param
	Results  []Param // of Go; in other languages one without a name and a place
	Variadic bool    // it takes more than Params
	// Inner has the names of the parameters of the innermost function around an instruction.
	Inner []string
	// Changed: the compiler has changed how it takes its arguments (DW_CC_nocall): no calling convention holds.
	Changed bool
}

// Param is a parameter or a result.
type Param struct {
	Name string
	Type Type
	// At is where it is when the function is entered, or at the instruction that was asked about; nil where nothing is told of it.
	At []Piece
	// Why says why At is nil: ErrLocation, or what is wrong with the list. nil: there is no place, it was optimised out or
	// the compiler tells of later ones only.
	Why error
	// Artificial: the compiler has made it up (this).
	Artificial bool
}

// Func describes the function that begins at a link-time address. ErrNone: there is none.
func (f *File) Func(pc uint64) (*Func, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	off, err := f.find(w, pc)
	if err != nil {
		return nil, err
	}
	u := f.unitAt(off)
	e, r, err := w.at(off)
	if err != nil {
		return nil, err
	}
	fn := &Func{Name: w.name(e), Lang: u.lang()}
	if t := w.typ(e); t.known && fn.Lang != LangGo {
		fn.Results = []Param{{Type: t}}
	}
	cc, _ := e.Val(dwarf.AttrCalling).(int64)
	fn.Changed = cc == ccNoCall
	base, _ := e.Val(dwarf.AttrFrameBase).([]byte)
	if !e.Children {
		return fn, nil
	}
	err = w.children(r, func(e *dwarf.Entry) error {
		switch e.Tag {
		case dwarf.TagUnspecifiedParameters:
			fn.Variadic = true
		case dwarf.TagFormalParameter:
			return fn.add(w, u, e, frame{base: base}, pc)
		}
		return nil
	})
	return fn, err
}

func (u *unit) lang() Lang {
	if u.root == nil {
		return LangOther
	}
	n, _ := u.root.Val(dwarf.AttrLanguage).(int64)
	return languages[n]
}

// add adds a parameter or, in Go, a result. Go lists some twice, where a deferred function may change them.
func (fn *Func) add(w *walk, u *unit, e *dwarf.Entry, in frame, pc uint64) error {
	if len(fn.Params)+len(fn.Results) >= maxParams {
		return fmt.Errorf("more than %d parameters: %w", maxParams, ErrLimit)
	}
	p := Param{Name: w.name(e), Type: w.typ(e)}
	p.Artificial, _ = w.val(e, dwarf.AttrArtificial).(bool)
	p.At, p.Why = w.f.placeAt(u, e, in, pc)
	list := &fn.Params
	if out, _ := w.val(e, dwarf.AttrVarParam).(bool); out && fn.Lang == LangGo {
		list = &fn.Results
	}
	if fn.Lang == LangGo && p.Name != "" && slices.ContainsFunc(*list, func(q Param) bool { return q.Name == p.Name }) {
		return nil
	}
	*list = append(*list, p)
	return nil
}

// placeAt tells where a variable is at an instruction.
func (f *File) placeAt(u *unit, e *dwarf.Entry, in frame, pc uint64) ([]Piece, error) {
	field := e.AttrField(dwarf.AttrLocation)
	if field == nil {
		return f.constValue(e)
	}
	expr, err := f.exprAt(u, field, pc)
	if err != nil || len(expr) == 0 {
		return nil, err
	}
	return f.place(u, expr, in)
}

// constValue is the place of a variable that is a constant in this function.
func (f *File) constValue(e *dwarf.Entry) ([]Piece, error) {
	switch v := e.Val(dwarf.AttrConstValue).(type) {
	case int64:
		return []Piece{{Kind: PieceConst, Value: uint64(v)}}, nil
	case []byte, string:
		return nil, ErrLocation
	}
	return nil, nil
}

// Var describes a variable of the file by its name: the first that has an address.
func (f *File) Var(name string) (Param, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return Param{}, err
	}
	for i := range f.units {
		u := &f.units[i]
		if u.root == nil || !u.root.Children {
			continue
		}
		p, err := f.varIn(w, u, name)
		if err == nil || !errors.Is(err, ErrNone) {
			return p, err
		}
	}
	return Param{}, fmt.Errorf("variable %q: %w", name, ErrNone)
}

var errFound = errors.New("found")

// varIn is Var in one unit.
func (f *File) varIn(w *walk, u *unit, name string) (p Param, err error) {
	_, r, err := w.at(u.first)
	if err != nil {
		return p, ErrNone
	}
	err = w.children(r, func(e *dwarf.Entry) error {
		if e.Tag != dwarf.TagVariable || e.AttrField(dwarf.AttrLocation) == nil || w.name(e) != name {
			return nil
		}
		p = Param{Name: name, Type: w.typ(e)}
		if p.At, p.Why = f.placeAt(u, e, frame{}, 0); len(p.At) == 0 {
			return nil
		}
		return errFound
	})
	if errors.Is(err, errFound) {
		return p, nil
	}
	if errors.Is(err, ErrLimit) {
		return p, err
	}
	return p, ErrNone
}
