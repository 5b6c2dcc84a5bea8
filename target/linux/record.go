package linux

import (
	"encoding/binary"
	"fmt"
	"strings"

	"kprobes.dev/kprobes/internal/fetch"
)

// commonSize is the size of the fields that each record begins with.
const commonSize = 8

// common are the fields that every event has.
type common struct {
	id      uint16
	flags   byte
	preempt byte
	pid     int
}

func parseCommon(data []byte) (c common, ok bool) {
	if len(data) < commonSize {
		return c, false
	}
	le := binary.LittleEndian
	return common{id: le.Uint16(data), flags: data[2], preempt: data[3], pid: int(int32(le.Uint32(data[4:])))}, true
}

// Bits of common_flags (include/linux/trace_events.h).
const (
	flagIRQsOff = 1 << iota
	flagLazy    // Linux 6.13
	flagResched
	flagHardIRQ
	flagSoftIRQ
	flagPreempt
	flagNMI
	flagBHOff // Linux 5.18
)

// context is the five characters that a line has behind the CPU
// (trace_print_lat_fmt, kernel/trace/trace_output.c).
func (c *common) context() [8]byte {
	return [8]byte{
		".dbD"[c.bit(flagIRQsOff)|c.bit(flagBHOff)<<1],
		".npNLblB"[c.bit(flagResched)|c.bit(flagPreempt)<<1|c.bit(flagLazy)<<2],
		c.interrupt(),
		depth(c.preempt & 15),
		depth(c.preempt >> 4),
	}
}

func (c *common) bit(mask byte) int {
	if c.flags&mask != 0 {
		return 1
	}
	return 0
}

// interrupt tells in what kind of interrupt the thread was.
func (c *common) interrupt() byte {
	if c.flags&flagNMI != 0 {
		return "zZ"[c.bit(flagHardIRQ)]
	}
	return ".hsH"[c.bit(flagHardIRQ)|c.bit(flagSoftIRQ)<<1]
}

func depth(n byte) byte { return ".123456789abcdef"[n] }

// translate appends a record as the format's program decodes it: the fixed part, then the
// strings. data is the kernel's record.
func (f *format) translate(dst, data []byte) ([]byte, error) {
	if len(data) < f.size {
		return dst, fmt.Errorf("record of %d bytes, not %d", len(data), f.size)
	}
	start := len(dst)
	dst = append(dst, make([]byte, f.prog.Fixed)...)
	for i := range f.prog.Args {
		a := &f.prog.Args[i]
		from := data[f.args[i].offset:][:f.args[i].size]
		slot := start + a.Off
		if !a.Type.IsString() {
			copy(dst[slot:], from)
			continue
		}
		for k := range max(a.Count, 1) {
			s, err := located(data, binary.LittleEndian.Uint32(from[4*k:]))
			if err != nil {
				return dst[:start], fmt.Errorf("argument %s: %w", a.Name, err)
			}
			if s == nil {
				continue
			}
			word := uint64(len(s)) | uint64(len(dst)-start)<<32
			dst = append(dst, s...)
			binary.LittleEndian.PutUint64(dst[slot+8*k:], word)
		}
	}
	return dst, nil
}

// task is the name of the thread that hit; "" if the record does not hold it.
func (f *format) task(data []byte) string {
	if f.comm == 0 {
		return ""
	}
	s, err := located(data, binary.LittleEndian.Uint32(data[f.comm:]))
	if err != nil {
		return ""
	}
	return clean(strings.TrimRight(string(s), "\x00"))
}

// faultString is what newer kernels record for a string that could not be read (6.1.77,
// 6.7); older ones record nothing.
const faultString = "(fault)\x00"

// located gives the string that a __data_loc tells of; nil for one that could not be read.
func located(data []byte, loc uint32) ([]byte, error) {
	off, n := int(loc&0xffff), int(loc>>16)
	if off+n > len(data) || n > fetch.MaxString {
		return nil, fmt.Errorf("string of %d bytes at %d of %d", n, off, len(data))
	}
	if s := data[off : off+n]; n > 0 && string(s) != faultString {
		return s, nil
	}
	return nil, nil
}

// word is the word at an offset, which is in the record.
func word(data []byte, off int) uint64 { return binary.LittleEndian.Uint64(data[off:]) }
