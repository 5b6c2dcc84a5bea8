package kmod

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Param is a parameter with its value, as insmod is given it.
type Param struct {
	Name, Value string
	Bare        bool // it was given without =
}

// ParseParam reads NAME=VALUE.
func ParseParam(s string) Param {
	name, value, ok := strings.Cut(s, "=")
	return Param{strings.ReplaceAll(name, "-", "_"), value, !ok}
}

// param is a struct __kp_param of the headers.
type param struct {
	name, kind        string
	value, size, most uint64 // size is in bytes, of an element
	count             uint64
}

// paramSize is the bytes of a struct __kp_param.
const paramSize = 48

// params reads the parameters that a module takes.
func (im *Image) params(l *Layout) (out []param, err error) {
	for _, s := range l.o.sections {
		if s.name != "__param" {
			continue
		}
		b := im.Bytes[s.part][l.off[s]:][:s.size]
		for ; len(b) >= paramSize; b = b[paramSize:] {
			field := func(n int) uint64 { return binary.LittleEndian.Uint64(b[8*n:]) }
			p := param{value: field(2), size: field(3), most: field(4), count: field(5)}
			var named, typed bool
			p.name, named = im.text(field(0))
			p.kind, typed = im.text(field(1))
			if !named || !typed || p.size > maxObject || p.most > maxObject || im.mem(p.value, p.size*max(p.most, 1)) == nil || p.count != 0 && im.mem(p.count, 4) == nil {
				return nil, fmt.Errorf("%w: section __param is damaged", ErrObject)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// mem is memory of the module that can be written; nil: there is none at the address.
func (im *Image) mem(addr, size uint64) []byte {
	at, all := im.At[Data], im.Bytes[Data]
	if addr < at || addr-at > uint64(len(all)) || size > uint64(len(all))-(addr-at) || size > maxObject {
		return nil
	}
	return all[addr-at:][:size]
}

// texts is where those of charp parameters go.
type texts struct {
	at   uint64
	left []byte
}

// put keeps a text, and gives its address.
func (t *texts) put(s string) uint64 {
	n := copy(t.left, s+"\x00")
	at := t.at
	t.at, t.left = t.at+uint64(n), t.left[n:]
	return at
}

// Set gives parameters their values, in order. unknown tells of those that the module does not take: the kernel loads it all the same. The errors are those of
// the kernel: EINVAL, ERANGE, ENOSPC.
func (im *Image) Set(l *Layout, all []Param, unknown func(name string)) error {
	known, err := im.params(l)
	if err != nil {
		return err
	}
	keep := &texts{at: im.At[Data] + l.texts, left: im.Bytes[Data][l.texts:]}
next:
	for _, p := range all {
		for i := range known {
			if known[i].name != p.Name {
				continue
			}
			if err := im.set(&known[i], p, keep); err != nil {
				return fmt.Errorf("`%s' invalid for parameter `%s': %w", p.Value, p.Name, err)
			}
			continue next
		}
		unknown(p.Name)
	}
	return nil
}

// set gives a parameter its value, an array as many as there are between commas.
func (im *Image) set(k *param, p Param, keep *texts) error {
	to := im.mem(k.value, k.size*max(k.most, 1))
	if k.most == 0 {
		return k.store(to, p, keep)
	}
	values := strings.Split(p.Value, ",")
	if uint64(len(values)) > k.most {
		return errno.Errorf(unix.EINVAL, "it takes %d values at most", k.most)
	}
	for i, v := range values {
		if err := k.store(to[uint64(i)*k.size:][:k.size], Param{p.Name, v, false}, keep); err != nil {
			return err
		}
	}
	if k.count != 0 {
		binary.LittleEndian.PutUint32(im.mem(k.count, 4), uint32(len(values)))
	}
	return nil
}

// maxCharp is the longest text of a parameter, in bytes (param_set_charp in kernel/params.c, Linux 6.18).
const maxCharp = 1024

// integers are the types of numbers: their bytes, and whether they have a sign.
var integers = map[string]struct {
	size   int
	signed bool
}{
	"byte": {1, false}, "hexint": {4, false}, "short": {2, true}, "ushort": {2, false}, "int": {4, true}, "uint": {4, false},
	"long": {8, true}, "ulong": {8, false}, "ullong": {8, false},
}

// store writes one value.
func (k *param) store(to []byte, p Param, keep *texts) error {
	if i, ok := integers[k.kind]; ok && len(to) == i.size {
		return integer(to, strings.TrimSuffix(p.Value, "\n"), i.signed)
	}
	switch {
	case (k.kind == "bool" || k.kind == "invbool") && len(to) == 1:
		on, ok := truth(p)
		if !ok {
			return errno.Errorf(unix.EINVAL, "it is 0, 1, y or n")
		}
		to[0] = 0
		if on == (k.kind == "bool") {
			to[0] = 1
		}
	case k.kind == "charp" && len(to) == 8:
		switch {
		case p.Bare:
			return errno.Errorf(unix.EINVAL, "it takes a value")
		case len(p.Value) > maxCharp:
			return errno.Errorf(unix.ENOSPC, "a text has at most %d bytes", maxCharp)
		}
		binary.LittleEndian.PutUint64(to, keep.put(p.Value))
	case k.kind == "string":
		switch {
		case p.Bare:
			return errno.Errorf(unix.EINVAL, "it takes a value")
		case len(p.Value)+1 > len(to):
			return errno.Errorf(unix.ENOSPC, "string doesn't fit in %d chars", len(to)-1)
		}
		clear(to)
		copy(to, p.Value)
	default:
		return errno.Errorf(unix.EINVAL, "parameters of type %s and %d bytes can not be set", k.kind, len(to))
	}
	return nil
}

// truth is kstrtobool of lib/kstrtox.c (Linux 6.18).
func truth(p Param) (on, ok bool) {
	switch v := p.Value; {
	case p.Bare:
		return true, true
	case v == "":
		return false, false
	case strings.ContainsRune("yYtT1", rune(v[0])):
		return true, true
	case strings.ContainsRune("nNfF0", rune(v[0])):
		return false, true
	case len(v) > 1 && (v[0] == 'o' || v[0] == 'O') && (v[1] == 'n' || v[1] == 'N'):
		return true, true
	case len(v) > 1 && (v[0] == 'o' || v[0] == 'O') && (v[1] == 'f' || v[1] == 'F'):
		return false, true
	}
	return false, false
}

// integer writes a number as kstrtoint and its like read it.
func integer(to []byte, s string, signed bool) error {
	digits, negative := strings.CutPrefix(s, "-")
	if !negative {
		digits = strings.TrimPrefix(s, "+")
	}
	base := 10
	switch {
	case strings.HasPrefix(digits, "0x"), strings.HasPrefix(digits, "0X"):
		digits, base = digits[2:], 16
	case len(digits) > 1 && digits[0] == '0':
		base = 8
	}
	v, err := strconv.ParseUint(digits, base, 64)
	if bad, ok := err.(*strconv.NumError); ok && bad.Err == strconv.ErrRange {
		return errno.Errorf(unix.ERANGE, "it does not fit")
	}
	if err != nil || negative && !signed || strings.ContainsAny(digits, "_+-") {
		return errno.Errorf(unix.EINVAL, "it is no number")
	}
	most := uint64(math.MaxUint64) >> (64 - 8*len(to))
	if signed {
		most >>= 1
		if negative {
			most++
		}
	}
	if v > most {
		return errno.Errorf(unix.ERANGE, "it does not fit")
	}
	if negative {
		v = -v
	}
	copy(to, binary.LittleEndian.AppendUint64(nil, v))
	return nil
}
