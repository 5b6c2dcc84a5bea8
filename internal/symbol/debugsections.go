package symbol

// DebugSection gives a section of the file's debug information by its name, decompressed: of the file itself, or of its separate
// debug file where the file has none. nil without an error: there is no such section.
func (im *Image) DebugSection(name string) ([]byte, error) {
	if im.opts.Kernel { // what files say counts from where they were linked
		return nil, nil
	}
	f := im.elf
	if f.section(".debug_info") == nil && !im.opts.NoDebugFiles {
		d, closer, _ := im.openDebugFile()
		if d == nil {
			return nil, nil
		}
		defer closer.Close()
		f = d
	}
	s := f.section(name)
	if s == nil {
		return nil, nil
	}
	return f.debugSection(s)
}
