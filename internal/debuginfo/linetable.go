package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"sort"
)

// lineTable has a unit's lines, in the order of their addresses.
type lineTable struct {
	rows  []lineRow
	files []lineFile // by the numbers that rows and inlined calls have
	dirs  []lineFile // by the numbers that files have
	dir   string     // in which the unit was compiled
}

// lineRow says that the code from addr on comes from a line; line 0: compilers have made it of none.
type lineRow struct {
	addr uint64
	file uint32
	line uint32 // with notStatement
}

// notStatement marks the line of a row at which no statement begins.
const notStatement = 1 << 31

// noFile is the file of the row behind the end of a run of code.
const noFile = ^uint32(0)

// maxLines bounds the rows of all line tables of a file, with the files and directories that they name.
const maxLines = 1 << 24

// lineTable reads the line table of a unit, once. One that is damaged, or of a kind that is not known, is an error.
func (f *File) lineTable(u *unit) (*lineTable, error) {
	off, ok := u.root.Val(dwarf.AttrStmtList).(int64)
	if !ok {
		return &lineTable{}, nil
	}
	if r, ok := f.lines[off]; ok {
		return r.t, r.err
	}
	t, err := f.readLines(u, off)
	if err != nil {
		t, err = nil, fmt.Errorf("line table at 0x%x: %w", off, err)
	}
	if f.lines == nil {
		f.lines = map[int64]linesRead{}
	}
	f.lines[off] = linesRead{t, err}
	return t, err
}

// linesRead is what became of a line table.
type linesRead struct {
	t   *lineTable
	err error
}

func (f *File) readLines(u *unit, off int64) (*lineTable, error) {
	c, err := f.sect.line.at(off, errLines)
	if err != nil {
		return nil, err
	}
	t := &lineTable{}
	t.dir, _ = u.root.Val(dwarf.AttrCompDir).(string)
	p := lineProgram{f: f, t: t, c: c, left: maxLines - f.lineRows}
	err = p.read()
	if f.lineRows = maxLines - p.left; err != nil {
		return nil, err
	}
	sort.SliceStable(t.rows, func(i, j int) bool {
		a, b := t.rows[i], t.rows[j]
		return a.addr < b.addr || a.addr == b.addr && a.file == noFile && b.file != noFile // an end comes before what begins there
	})
	return t, nil
}

// at finds the row that holds for an instruction. Of several for one address the last one counts.
func (t *lineTable) at(pc uint64) (lineRow, bool) {
	i := sort.Search(len(t.rows), func(i int) bool { return t.rows[i].addr > pc }) - 1
	if i < 0 || t.rows[i].file == noFile {
		return lineRow{}, false
	}
	return t.rows[i], true
}

// file is a file's path by its number; "" where there is none.
func (t *lineTable) file(n int64) string {
	if n < 0 || n >= int64(len(t.files)) {
		return ""
	}
	f := t.files[n]
	if f.dir >= uint64(len(t.dirs)) {
		return join(t.dir, f.String())
	}
	return join(join(t.dir, t.dirs[f.dir].String()), f.String())
}

// lineProgram reads a line table (DWARF 5, 6.2.4; DWARF 4 to 2 likewise).
type lineProgram struct {
	f       *File
	t       *lineTable
	c       cursor
	wide    bool
	version uint16
	minInst uint64
	base    int64
	span    uint64
	// statement: rows begin statements, until an instruction turns that round.
	statement bool
	lengths   []uint8 // operands of the standard instructions, from 1
	left      int     // rows, files and directories that may be read yet
}

// one counts a row, a file or a directory; false: there may be no more.
func (p *lineProgram) one() bool {
	p.left--
	return p.left >= 0
}

// errLimit says that there are too many.
var errLimit = fmt.Errorf("more than %d lines and files: %w", maxLines, ErrLimit)

var errLines = errors.New("damaged, or of a kind that is not known")

// read reads a table.
func (p *lineProgram) read() error {
	c := &p.c
	length := uint64(c.u32())
	if p.wide = length == 0xffffffff; p.wide {
		length = c.u64()
	}
	if c.bad || length > uint64(len(c.b)-c.pos) {
		return errLines
	}
	c.b = c.b[:c.pos+int(length)]
	if p.version = c.u16(); p.version < 2 || p.version > 5 {
		return errLines
	}
	if p.version == 5 {
		c.u8() // size of addresses
		c.u8()
	}
	head := uint64(c.offset(p.wide))
	if c.bad || head > uint64(len(c.b)-c.pos) {
		return errLines
	}
	program := c.pos + int(head)
	p.minInst = uint64(c.u8())
	if p.version >= 4 && c.u8() != 1 { // operations of an instruction
		return errLines
	}
	p.statement = c.u8() != 0
	p.base, p.span = int64(int8(c.u8())), uint64(c.u8())
	p.lengths = make([]uint8, c.u8())
	for i := 1; i < len(p.lengths); i++ {
		p.lengths[i] = c.u8()
	}
	if c.bad || p.span == 0 || len(p.lengths) == 0 {
		return errLines
	}
	if p.version == 5 {
		p.t.dirs = p.entries()
		p.t.files = p.entries()
	} else {
		p.names()
	}
	switch {
	case p.left < 0:
		return errLimit
	case c.bad:
		return errLines
	}
	c.pos = program
	return p.run()
}

// Instructions (DWARF 5, 6.2.5).
const (
	lineExtended      = 0
	lineCopy          = 1
	lineAdvancePC     = 2
	lineAdvance       = 3
	lineSetFile       = 4
	lineNegate        = 6
	lineConstAddPC    = 8
	lineFixedPC       = 9
	lineEndSequence   = 1 // behind lineExtended and a length
	lineSetAddress    = 2
	lineDefineFile    = 3
	lineSpecialOpcode = 255
)

// lineRegs are the registers of the program (DWARF 5, 6.2.2).
type lineRegs struct {
	addr, file uint64
	line       int64
	statement  bool
}

// row adds a row.
func (p *lineProgram) row(r lineRegs) {
	p.left--
	row := lineRow{r.addr, uint32(min(r.file, uint64(noFile))), uint32(min(max(r.line, 0), notStatement-1))}
	if !r.statement {
		row.line |= notStatement
	}
	p.t.rows = append(p.t.rows, row)
}

// run runs the instructions.
func (p *lineProgram) run() error {
	c := &p.c
	first := lineRegs{file: 1, line: 1, statement: p.statement}
	for r := first; c.pos < len(c.b) && !c.bad; {
		if p.left < 0 {
			return errLimit
		}
		op := c.u8()
		switch {
		case int(op) >= len(p.lengths):
			n := uint64(int(op) - len(p.lengths))
			r.addr += n / p.span * p.minInst
			r.line += p.base + int64(n%p.span)
			p.row(r)
		case op == lineExtended:
			ended, err := p.extended(&r)
			if err != nil {
				return err
			}
			if ended {
				r = first
			}
		case op == lineCopy:
			p.row(r)
		case op == lineAdvancePC:
			r.addr += c.uleb() * p.minInst
		case op == lineAdvance:
			r.line += c.sleb()
		case op == lineSetFile:
			r.file = c.uleb()
		case op == lineNegate:
			r.statement = !r.statement
		case op == lineConstAddPC:
			r.addr += uint64(lineSpecialOpcode-len(p.lengths)) / p.span * p.minInst
		case op == lineFixedPC:
			r.addr += uint64(c.u16())
		default:
			for range p.lengths[op] {
				c.uleb()
			}
		}
	}
	if c.bad {
		return errLines
	}
	return nil
}

// extended runs an instruction behind lineExtended; ended: it was the last one of a sequence.
func (p *lineProgram) extended(r *lineRegs) (ended bool, err error) {
	c := &p.c
	n := c.uleb()
	if n == 0 || n > uint64(len(c.b)-c.pos) {
		return false, errLines
	}
	next := c.pos + int(n)
	switch c.u8() {
	case lineEndSequence:
		p.row(lineRegs{addr: r.addr, file: uint64(noFile), statement: r.statement})
		ended = true
	case lineSetAddress:
		if n != 9 {
			return false, errLines
		}
		r.addr = c.u64()
	case lineDefineFile:
		p.file()
	}
	c.pos = next
	return ended, nil
}
