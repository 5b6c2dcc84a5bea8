package debuginfo

import (
	"bytes"
	"path"
)

// lineFile is a file, or a directory. Its name is a part of the section, up to the first NUL, which is looked for when the name is
// asked for: many may have one long name.
type lineFile struct {
	name []byte
	dir  uint64
}

func (f *lineFile) String() string {
	name, _, _ := bytes.Cut(f.name, []byte{0})
	return string(name)
}

// join is a path below a directory.
func join(dir, name string) string {
	if path.IsAbs(name) || dir == "" {
		return name
	}
	return path.Join(dir, name)
}

// names reads the directories and files of versions up to 4, which count from 1.
func (p *lineProgram) names() {
	p.t.dirs = []lineFile{{}}
	for !p.c.bad {
		s := p.c.bytes()
		if len(s) == 0 || !p.one() {
			break
		}
		p.t.dirs = append(p.t.dirs, lineFile{name: s})
	}
	p.t.files = []lineFile{{}}
	for p.file() {
	}
}

// file reads an entry of the files of versions up to 4; false: there are no more.
func (p *lineProgram) file() bool {
	name := p.c.bytes()
	if len(name) == 0 || !p.one() {
		return false
	}
	n := p.c.uleb()
	p.c.uleb() // time
	p.c.uleb() // size
	p.t.files = append(p.t.files, lineFile{name, n})
	return true
}

// entries reads a list of directories or files of version 5.
func (p *lineProgram) entries() []lineFile {
	c := &p.c
	format := make([][2]uint64, c.u8())
	for i := range format {
		format[i] = [2]uint64{c.uleb(), c.uleb()}
	}
	n := c.uleb()
	if n > uint64(len(c.b)-c.pos) || n > 0 && len(format) == 0 { // each takes a byte at least
		c.bad = true
		return nil
	}
	if p.left -= int(n); p.left < 0 {
		return nil
	}
	out := make([]lineFile, 0, n)
	for range n {
		var f lineFile
		for _, e := range format {
			s, v := p.value(e[1])
			switch e[0] {
			case contentPath:
				f.name = s
			case contentDir:
				f.dir = v
			}
		}
		if c.bad {
			return nil
		}
		out = append(out, f)
	}
	return out
}

// value reads a value of a form.
func (p *lineProgram) value(form uint64) (s []byte, v uint64) {
	c := &p.c
	switch form {
	case formString:
		s = c.bytes()
	case formStrp:
		s = stringAt(p.f.sect.str, uint64(c.offset(p.wide)))
	case formLineStrp:
		s = stringAt(p.f.sect.lineStr, uint64(c.offset(p.wide)))
	case formUdata:
		v = c.uleb()
	case formData1:
		v = uint64(c.u8())
	case formData2:
		v = uint64(c.u16())
	case formData4:
		v = uint64(c.u32())
	case formData8:
		v = c.u64()
	case formData16:
		c.take(16)
	case formBlock:
		c.take(int(min(c.uleb(), 1<<31)))
	case formBlock1:
		c.take(int(c.u8()))
	case formBlock2:
		c.take(int(c.u16()))
	case formBlock4:
		c.take(int(c.u32()))
	default:
		c.bad = true
	}
	return s, v
}

// stringAt is the string at an offset, with what is behind it; none where there is none.
func stringAt(b []byte, off uint64) []byte {
	if off >= uint64(len(b)) {
		return nil
	}
	return b[off:]
}

// Contents of the entries of version 5 (DWARF 5, 7.22).
const (
	contentPath = 1
	contentDir  = 2
)
