package symbol

import (
	"encoding/binary"
	"slices"
	"sort"
)

// Sequence is a restartable sequence of the program (rseq(2); struct rseq_cs in linux/rseq.h),
// in link-time addresses. A thread that is preempted between Start and End goes on at
// Abort, before which stands a signature of four bytes that the kernel checks.
type Sequence struct {
	Start, End, Abort uint64
}

// rseqSection is where librseq and tcmalloc keep the descriptors of their sequences.
const rseqSection = "__rseq_cs"

// sequenceSize is the size of struct rseq_cs: version, flags, start, length, abort.
const sequenceSize = 32

// maxSequences bounds what is read of a hostile file. tcmalloc has less than a hundred.
const maxSequences = 1 << 14

// Sequences lists the program's restartable sequences in the order of addresses. The error
// is a *FormatError for a section that cannot be read.
func (im *Image) Sequences() ([]Sequence, error) {
	s := im.elf.section(rseqSection)
	if s == nil {
		return nil, nil
	}
	if s.size > maxSequences*sequenceSize {
		return nil, im.elf.fail(rseqSection, s.off, "%d bytes, at most %d are read", s.size, maxSequences*sequenceSize)
	}
	b, err := im.elf.bytesAt(s.off, s.size, rseqSection)
	if err != nil {
		return nil, err
	}
	if b, err = im.relocated(b, s.addr); err != nil {
		return nil, err
	}
	var out []Sequence
	for ; len(b) >= sequenceSize; b = b[sequenceSize:] {
		start, n, abort := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		if q := (Sequence{start, start + n, abort}); q.End > q.Start {
			out = append(out, q)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Start < out[j].Start })
	return out, nil
}

// relocated puts the addends of relative relocations into a copy of data that stand at a
// link-time address. Packed ones (DT_RELR) have theirs in place.
func (im *Image) relocated(data []byte, addr uint64) ([]byte, error) {
	if im.dyn.relasz == 0 {
		return data, nil
	}
	data = slices.Clone(data)
	err := im.elf.eachRela(im.dyn.rela, im.dyn.relasz, "DT_RELA", func(r rela) bool {
		if off := r.off - addr; im.elf.isRelative(r.typ) && off < uint64(len(data)) && uint64(len(data))-off >= 8 {
			binary.LittleEndian.PutUint64(data[off:], r.addend)
		}
		return true
	})
	return data, err
}
