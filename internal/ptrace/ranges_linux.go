package ptrace

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
)

// Bounds of one call that reads many ranges: how many (the kernel takes 1,024, IOV_MAX), and of how many bytes.
const (
	rangesAtOnce = 512
	rangesBytes  = 256 << 10
)

// rangeBuffers are those of ReadRanges, which is called several times in a stop.
var rangeBuffers sync.Pool

// ReadRanges reads ranges of the stopped process's memory, and gives f what is there of each, in order: up to its end,
// or to the first page that is not there. A range that is longer than a part of the buffer comes in several
// pieces. Thousands of small ranges take a few system calls.
func (s *Stopped) ReadRanges(rs []interval.Range, f func(i int, at uint64, b []byte) error) error {
	buf, _ := rangeBuffers.Get().(*[rangesBytes]byte)
	if buf == nil {
		buf = new([rangesBytes]byte)
	}
	defer rangeBuffers.Put(buf)
	for first := 0; first < len(rs); {
		end, size := first, uint64(0)
		for end < len(rs) && end-first < rangesAtOnce && rs[end].Size() <= rangesBytes-size {
			size += rs[end].Size()
			end++
		}
		done, err := s.readTogether(rs[first:end], buf[:size], func(i int, at uint64, b []byte) error { return f(first+i, at, b) })
		if err != nil {
			return err
		}
		if first += done; first == end && done > 0 || first == len(rs) {
			continue
		}
		if err := s.p.ReadPieces(rs[first], buf[:], func(at uint64, b []byte) error { return f(first, at, b) }); err != nil {
			return err
		}
		first++
	}
	return nil
}

// readTogether reads ranges in one system call, and says how many of them were there as a whole: those it gives to f.
// It heeds what pages permit, so that the next one may be there nevertheless.
func (s *Stopped) readTogether(rs []interval.Range, buf []byte, f func(i int, at uint64, b []byte) error) (done int, err error) {
	if len(rs) == 0 || len(buf) == 0 || s.apart {
		return 0, nil
	}
	remote := make([]unix.RemoteIovec, len(rs))
	for i, r := range rs {
		remote[i] = unix.RemoteIovec{Base: uintptr(r.Start), Len: int(r.Size())}
	}
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(s.threads[0].TID, local, remote, 0)
	if err != nil {
		s.apart = !errors.Is(err, unix.EFAULT)
		return 0, nil // not permitted, or the first one is not there
	}
	for b := buf[:n]; done < len(rs) && rs[done].Size() <= uint64(len(b)); done++ {
		size := rs[done].Size()
		if err := f(done, rs[done].Start, b[:size]); err != nil {
			return done, err
		}
		b = b[size:]
	}
	return done, nil
}

// ReadPieces reads a range piece by piece, whatever its pages permit, up to the first one that is not there.
func (p *Process) ReadPieces(r interval.Range, buf []byte, f func(at uint64, b []byte) error) error {
	for at := r.Start; at < r.End; {
		b := buf[:min(uint64(len(buf)), r.End-at)]
		n, err := p.ReadMemSome(at, b)
		if err != nil && !errors.Is(err, ErrFault) {
			return err
		}
		if n > 0 {
			if err := f(at, b[:n]); err != nil {
				return err
			}
		}
		if n < len(b) {
			return nil
		}
		at += uint64(n)
	}
	return nil
}
