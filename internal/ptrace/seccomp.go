package ptrace

import "fmt"

// filter is one seccomp filter: classic BPF (linux/filter.h).
type filter []bpfInsn

// bpfInsn is struct sock_filter.
type bpfInsn struct {
	Code   uint16
	JT, JF uint8
	K      uint32
}

// filterList is the filters of a thread. All run at every system call.
type filterList []filter

// CallData is struct seccomp_data, what a filter sees.
type CallData struct {
	nr   uint32
	arch uint32
	ip   uint64
	args [6]uint64
	open uint16 // words, a bit each, whose values are not known
}

// callWords is what a filter loads: the structure, 32 bits at a time.
type callWords struct {
	w    [callDataSize / 4]uint32
	open uint16
}

// Words of seccomp_data that may be open: the instruction pointer and an argument.
const openIP = 3 << 2

func openArg(n int) uint16 { return 3 << (4 + 2*n) }

const (
	callDataSize = 64
	bpfMemWords  = 16

	// What a filter answers, without its 16 bits of data (linux/seccomp.h).
	seccompActionMask = 0xffff0000
	seccompKill       = 0
	seccompLog        = 0x7ffc0000
	seccompAllow      = 0x7fff0000
)

// words gives the structure as a filter loads it.
func (d *CallData) words() callWords {
	c := callWords{open: d.open}
	w := &c.w
	w[0], w[1] = d.nr, d.arch
	w[2], w[3] = uint32(d.ip), uint32(d.ip>>32)
	for i, a := range d.args {
		w[4+2*i], w[5+2*i] = uint32(a), uint32(a>>32)
	}
	return c
}

// allows says whether every filter lets the call through. Others than "allow" and "log"
// kill the thread, send it a signal, make it wait, or make the call fail. A filter that
// looks at a word that is not known does not let it through.
func (l filterList) allows(d *CallData) (bool, error) {
	words := d.words()
	for i, f := range l {
		answer, err := f.run(&words)
		if err != nil {
			return false, fmt.Errorf("seccomp filter %d: %w", i, err)
		}
		if a := answer & seccompActionMask; a != seccompAllow && a != seccompLog {
			return false, nil
		}
	}
	return true, nil
}

// bpfState is the machine: accumulator, index, scratch words.
type bpfState struct {
	a, x uint32
	mem  [bpfMemWords]uint32
	open bool // a word that is not known was looked at
}

// run executes the filter. Jumps go forward only, so it ends. One that looks at a word that
// is not known is taken for one that kills.
func (f filter) run(data *callWords) (uint32, error) {
	var s bpfState
	for pc := 0; pc < len(f); pc++ {
		in := f[pc]
		switch in.Code & 7 {
		case 0, 1, 2, 3, 4, 7:
			if !s.compute(in, data) {
				return 0, fmt.Errorf("instruction %d: code %#x, k %#x is not one of seccomp's", pc, in.Code, in.K)
			}
			if s.open {
				return seccompKill, nil
			}
		case 5: // jmp
			skip, ok := s.jump(in)
			if !ok || skip > uint32(len(f)) {
				return 0, fmt.Errorf("instruction %d: jump code %#x, k %#x is not one of seccomp's", pc, in.Code, in.K)
			}
			pc += int(skip)
		case 6: // ret
			if in.Code&0x18 == 0x10 {
				return s.a, nil
			}
			return in.K, nil
		}
	}
	return 0, fmt.Errorf("it ends without an answer")
}

// compute does loads, stores, arithmetic and moves.
func (s *bpfState) compute(in bpfInsn, data *callWords) bool {
	switch in.Code & 7 {
	case 0:
		return s.load(&s.a, in, data)
	case 1:
		return s.load(&s.x, in, data)
	case 2, 3:
		if in.K >= bpfMemWords {
			return false
		}
		s.mem[in.K] = s.a
		if in.Code&7 == 3 {
			s.mem[in.K] = s.x
		}
	case 4:
		return s.alu(in)
	case 7:
		if in.Code&0x80 != 0 {
			s.a = s.x
		} else {
			s.x = s.a
		}
	}
	return true
}

func (s *bpfState) load(to *uint32, in bpfInsn, data *callWords) bool {
	switch in.Code & 0xe0 {
	case 0x00: // imm
		*to = in.K
	case 0x20: // abs
		if in.K%4 != 0 || in.K >= callDataSize {
			return false
		}
		*to = data.w[in.K/4]
		s.open = s.open || data.open>>(in.K/4)&1 != 0
	case 0x60: // mem
		if in.K >= bpfMemWords {
			return false
		}
		*to = s.mem[in.K]
	case 0x80: // len
		*to = callDataSize
	default:
		return false
	}
	return true
}

// operand is k, or x where the code says so.
func (s *bpfState) operand(in bpfInsn) uint32 {
	if in.Code&8 != 0 {
		return s.x
	}
	return in.K
}

func (s *bpfState) alu(in bpfInsn) bool {
	v := s.operand(in)
	switch in.Code & 0xf0 {
	case 0x00:
		s.a += v
	case 0x10:
		s.a -= v
	case 0x20:
		s.a *= v
	case 0x30:
		if v == 0 {
			return false // the kernel ends such a run with 0, which kills
		}
		s.a /= v
	case 0x40:
		s.a |= v
	case 0x50:
		s.a &= v
	case 0x60:
		s.a <<= v & 31
	case 0x70:
		s.a >>= v & 31
	case 0x80:
		s.a = -s.a
	case 0xa0:
		s.a ^= v
	default:
		return false
	}
	return true
}

// jump says how many instructions are skipped.
func (s *bpfState) jump(in bpfInsn) (skip uint32, ok bool) {
	v, taken := s.operand(in), false
	switch in.Code & 0xf0 {
	case 0x00:
		return in.K, true
	case 0x10:
		taken = s.a == v
	case 0x20:
		taken = s.a > v
	case 0x30:
		taken = s.a >= v
	case 0x40:
		taken = s.a&v != 0
	default:
		return 0, false
	}
	if taken {
		return uint32(in.JT), true
	}
	return uint32(in.JF), true
}
