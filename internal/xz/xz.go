// Package xz decompresses what may be hostile: a stream can not ask for more memory than the caller
// allows.
package xz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// ErrLimit is in the chain when a stream holds, or asks for, more bytes than it may.
var ErrLimit = errors.New("larger than the limit")

// maxDict is the largest LZMA2 dictionary that is allocated, in bytes: what xz -9 asks for.
const maxDict = 64 << 20

// Decompress decompresses one xz stream (The .xz File Format 1.1.0) of LZMA2 blocks to at most
// limit bytes. It walks the container itself so that a header can not ask for more memory
// than maxDict.
//
//	stream: "\xfd7zXZ\0" | flags[2] | crc32 ; blocks ; index, from a zero byte on
//	block:  header | LZMA2 chunks | zeros to 4 bytes | check
func Decompress(z []byte, limit uint64) ([]byte, error) {
	if len(z) < 12 || !bytes.HasPrefix(z, []byte("\xfd7zXZ\x00")) {
		return nil, errors.New("no xz stream")
	}
	if crc32.ChecksumIEEE(z[6:8]) != binary.LittleEndian.Uint32(z[8:]) {
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
	used := b.head + (len(z)-b.head-in.Len()+3)&^3 // the header's size is a multiple of 4
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
	if crc32.ChecksumIEEE(z[:size-4]) != binary.LittleEndian.Uint32(z[size-4:]) {
		return 0, 0, errors.New("damaged xz block header")
	}
	const hasPacked, hasSize, lzma2 = 0x40, 0x80, 0x21
	flags, rest := z[1], z[2:size-4]
	var num [4]uint64 // sizes if they are there, filter, length of its properties
	n := 2
	for _, has := range []byte{hasPacked, hasSize} {
		if flags&has != 0 {
			n++
		}
	}
	for i := range n {
		v, used := binary.Uvarint(rest)
		if used <= 0 {
			return 0, 0, errors.New("damaged xz block header")
		}
		num[i], rest = v, rest[used:]
	}
	if num[n-2] != lzma2 || num[n-1] != 1 || flags&3 != 0 {
		return 0, 0, fmt.Errorf("xz filter 0x%x: only LZMA2 alone is read", num[n-2])
	}
	if len(rest) == 0 {
		return 0, 0, errors.New("damaged xz block header")
	}
	d, err := lzma.DecodeDictCap(rest[0])
	if err != nil {
		return 0, 0, errors.New("bad dictionary size")
	}
	if d > maxDict {
		return 0, 0, fmt.Errorf("dictionary of %d bytes: %w of %d", d, ErrLimit, maxDict)
	}
	return size, int(max(d, lzma.MinDictCap)), nil
}
