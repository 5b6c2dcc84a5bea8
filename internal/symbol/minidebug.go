package symbol

import (
	"bytes"
	"errors"
)

// debugData decompresses .gnu_debugdata, the ELF file of MiniDebugInfo; nil without error
// if there is none.
func (f *elfFile) debugData() (*elfFile, error) {
	s := f.section(".gnu_debugdata")
	if s == nil {
		return nil, nil
	}
	z, err := f.bytesAt(s.off, s.size, s.name)
	if err != nil {
		return nil, err
	}
	n := native.Load()
	if n == nil {
		return nil, &FormatError{Path: f.path, Off: s.off, What: s.name, Why: "is compressed: import _ \"" + nativePath + "\" to have it read", Err: errors.ErrUnsupported}
	}
	b, err := n.Unxz(z, f.limit)
	if err != nil {
		return nil, &FormatError{Path: f.path, Off: s.off, What: s.name, Why: "can not be decompressed", Err: err}
	}
	m, err := parseELF(bytes.NewReader(b), int64(len(b)), f.path+"(.gnu_debugdata)", &Options{MaxSize: f.limit}, true)
	if err != nil {
		return nil, err
	}
	return m, m.sectErr
}
