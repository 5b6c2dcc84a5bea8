package symbol

import "strings"

// DebugSection gives a section of the file's debug information by its name, decompressed: of the file itself, or of its separate
// debug file where the file has none. nil without an error: there is no such section.
func (im *Image) DebugSection(name string) ([]byte, error) {
	f, done := im.debugFile()
	if f == nil {
		return nil, nil
	}
	defer done()
	s := f.section(name)
	if s == nil {
		return nil, nil
	}
	return f.debugSection(s)
}

// DebugSize is the size of all sections that DebugSection gives, as they lie in their file, in bytes.
func (im *Image) DebugSize() (n uint64) {
	f, done := im.debugFile()
	if f == nil {
		return 0
	}
	defer done()
	for i := range f.sects {
		if s := &f.sects[i]; strings.HasPrefix(s.name, ".debug_") && s.typ != secNobits {
			n += s.size
		}
	}
	return n
}

// debugFile gives the file that has the debug information, until done is called; nil: there is none.
func (im *Image) debugFile() (f *elfFile, done func()) {
	done = func() {}
	switch {
	case im.opts.Kernel: // what files say counts from where they were linked
		return nil, done
	case im.elf.section(".debug_info") != nil || im.opts.NoDebugFiles:
		return im.elf, done
	}
	d, closer, _ := im.openDebugFile()
	if d == nil {
		return nil, done
	}
	return d, func() { closer.Close() }
}
