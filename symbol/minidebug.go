package symbol

import (
	"bytes"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// maxDict is the largest LZMA2 dictionary that is allocated: what xz -9 asks for.
const maxDict = 64 << 20

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
	b, err := unxz(z, f.limit)
	if err != nil {
		return nil, &FormatError{Path: f.path, Off: s.off, What: s.name, Why: "can not be decompressed", Err: err}
	}
	m, err := parseELF(bytes.NewReader(b), int64(len(b)), f.path+"(.gnu_debugdata)", &Options{MaxSize: f.limit}, true)
	if err != nil {
		return nil, err
	}
	return m, m.sectErr
}

// unxz decompresses one xz stream (The .xz File Format 1.1.0) of LZMA2 blocks to at most
// limit bytes. It walks the container itself so that a header can not ask for more memory
// than maxDict.
//
//	stream: "\xfd7zXZ\0" | flags[2] | crc32 ; blocks ; index, from a zero byte on
//	block:  header | LZMA2 chunks | zeros to 4 bytes | check
func unxz(z []byte, limit uint64) ([]byte, error) {
	if len(z) < 12 || !bytes.HasPrefix(z, []byte("\xfd7zXZ\x00")) {
		return nil, errors.New("no xz stream")
	}
	if crc32.ChecksumIEEE(z[6:8]) != (&cursor{b: z, pos: 8}).u32() {
		return nil, errors.New("damaged xz stream header")
	}
	var b block
	var err error
	if b.check, b.checkSize, err = xzCheck(z[7] & 0x0f); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	dicts := uint64(0) // bytes of all dictionaries: many tiny blocks must not ask for many
	for pos := 12; ; {
		if pos >= len(z) {
			return nil, io.ErrUnexpectedEOF
		}
		if z[pos] == 0 {
			return out.Bytes(), nil
		}
		if b.head, b.dict, err = xzBlockHeader(z[pos:]); err != nil {
			return nil, err
		}
		if dicts += uint64(b.dict); dicts > limit+maxDict {
			return nil, fmt.Errorf("dictionaries of %d bytes: %w", dicts, ErrLimit)
		}
		used, err := b.decode(&out, z[pos:], limit)
		if err != nil {
			return nil, err
		}
		pos += used
	}
}

// xzCheck gives the hash of a check type and the size of its field; nil for SHA-256 and
// reserved types, which are not compared.
func xzCheck(typ byte) (hash.Hash, int, error) {
	switch typ {
	case 0:
		return nil, 0, nil
	case 1:
		return crc32.NewIEEE(), 4, nil
	case 4:
		return crc64.New(crc64.MakeTable(crc64.ECMA)), 8, nil
	case 10:
		return nil, 32, nil
	}
	return nil, 0, fmt.Errorf("xz check type %d: unknown", typ)
}

// block is an LZMA2 block: what its header says, and the check that follows it.
type block struct {
	head, dict int
	check      hash.Hash // nil: not compared
	checkSize  int
}

// decode appends the block at the start of z to out and gives the bytes that it takes.
func (b *block) decode(out *bytes.Buffer, z []byte, limit uint64) (int, error) {
	in := bytes.NewReader(z[b.head:])
	r, err := lzma.Reader2Config{DictCap: b.dict}.NewReader2(in)
	if err != nil {
		return 0, err
	}
	start := out.Len()
	room := int64(limit) - int64(start)
	n, err := io.Copy(out, io.LimitReader(r, room+1))
	if err != nil {
		return 0, err
	}
	if n > room {
		return 0, fmt.Errorf("more than %d bytes: %w", limit, ErrLimit)
	}
	used := b.head + align4(len(z)-b.head-in.Len()) // the header's size is a multiple of 4
	if used+b.checkSize > len(z) {
		return 0, io.ErrUnexpectedEOF
	}
	if b.check != nil {
		b.check.Reset()
		b.check.Write(out.Bytes()[start:])
		if !checkEqual(b.check.Sum(nil), z[used:used+b.checkSize]) {
			return 0, errors.New("checksum does not match")
		}
	}
	return used + b.checkSize, nil
}

// checkEqual compares a big-endian sum with the little-endian field of the file.
func checkEqual(sum, field []byte) bool {
	for i := range sum {
		if sum[i] != field[len(field)-1-i] {
			return false
		}
	}
	return true
}

// xzBlockHeader gives the size of a block header and the dictionary its LZMA2 filter
// needs: u8 size/4-1 | u8 flags | [uleb sizes] | uleb filter, properties | … | crc32.
func xzBlockHeader(z []byte) (size, dict int, err error) {
	size = (int(z[0]) + 1) * 4
	if size > len(z) {
		return 0, 0, io.ErrUnexpectedEOF
	}
	if crc32.ChecksumIEEE(z[:size-4]) != (&cursor{b: z, pos: size - 4}).u32() {
		return 0, 0, errors.New("damaged xz block header")
	}
	c := &cursor{b: z[:size-4], pos: 1}
	flags := c.u8()
	const hasPacked, hasSize, lzma2 = 0x40, 0x80, 0x21
	if flags&hasPacked != 0 {
		c.uleb()
	}
	if flags&hasSize != 0 {
		c.uleb()
	}
	if filter, n := c.uleb(), c.uleb(); filter != lzma2 || n != 1 || flags&3 != 0 {
		return 0, 0, fmt.Errorf("xz filter 0x%x: only LZMA2 alone is read", filter)
	}
	d, err := lzma.DecodeDictCap(c.u8())
	if err != nil || c.bad {
		return 0, 0, errors.New("bad dictionary size")
	}
	if d > maxDict {
		return 0, 0, fmt.Errorf("dictionary of %d bytes: %w of %d", d, ErrLimit, maxDict)
	}
	return size, int(max(d, lzma.MinDictCap)), nil
}
