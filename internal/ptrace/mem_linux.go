package ptrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

var le = binary.LittleEndian

// ReadMem fills buf from the process's memory at addr, whatever the pages permit. All of
// it must be there. Errors: ErrFault, ErrExec, ErrNoProcess.
func (p *Process) ReadMem(addr uint64, buf []byte) error {
	n, err := p.ReadMemSome(addr, buf)
	if err != nil || n == len(buf) {
		return err
	}
	return fmt.Errorf("process %d: read of %d bytes at %#x: %w at %#x", p.pid, len(buf), addr, ErrFault, addr+uint64(n))
}

// ReadMemSome reads what is there from addr on, up to the first page that is not. It gives
// ErrFault if that is nothing.
func (p *Process) ReadMemSome(addr uint64, buf []byte) (int, error) {
	return p.access("read", unix.Pread, addr, buf)
}

// WriteMemSome writes to what is there from addr on, through pages that are read-only too, up to the first page that is
// not there. It gives ErrFault if that is nothing.
func (p *Process) WriteMemSome(addr uint64, buf []byte) (int, error) {
	return p.access("write", unix.Pwrite, addr, buf)
}

// access moves buf by pread or pwrite on the memory file.
func (p *Process) access(what string, do func(int, []byte, int64) (int, error), addr uint64, buf []byte) (done int, err error) {
	for done < len(buf) {
		at := addr + uint64(done)
		n, err := 0, error(unix.EIO)
		if int64(at) >= 0 {
			n, err = do(int(p.mem.Fd()), buf[done:], int64(at))
		}
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			return done, fmt.Errorf("process %d: %s of %d bytes at %#x: %w", p.pid, what, len(buf), addr, p.lost())
		case n <= 0 && done > 0:
			return done, nil
		case errors.Is(err, unix.EIO), errors.Is(err, unix.EFAULT):
			return done, fmt.Errorf("process %d: %s of %d bytes at %#x: %w", p.pid, what, len(buf), addr, ErrFault)
		case err != nil:
			return done, fmt.Errorf("process %d: %s of %d bytes at %#x: %w", p.pid, what, len(buf), addr, err)
		}
		done += n
	}
	return done, nil
}

// WriteMem writes buf to the process's memory at addr, through pages that are read-only
// too (they become private copies), and reads it back. Where the kernel was built or
// booted so that /proc/PID/mem heeds page permissions (PROC_MEM_NO_FORCE), read-only pages
// take PTRACE_POKETEXT, and so a stopped process. Errors: ErrFault, ErrExec, ErrNoProcess.
//
// Other threads may see the bytes in any order. The write is not one with respect to
// them: stop them first, or write no more than one aligned word.
func (p *Process) WriteMem(addr uint64, buf []byte) error {
	if err := p.MakeBacking(addr, uint64(len(buf))); err != nil {
		return err
	}
	step("write")
	n, err := p.access("write", unix.Pwrite, addr, buf)
	if errors.Is(err, ErrFault) || err == nil && n < len(buf) {
		err = p.poke(addr+uint64(n), buf[n:])
	}
	if err != nil {
		return err
	}
	var page [procfs.PageSize]byte
	back := page[:]
	if len(buf) > len(back) {
		back = make([]byte, min(len(buf), 64<<10))
	}
	for off := 0; off < len(buf); off += len(back) {
		want := buf[off:min(off+len(back), len(buf))]
		have := back[:len(want)]
		if err := p.ReadMem(addr+uint64(off), have); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if !bytes.Equal(have, want) {
			return fmt.Errorf("process %d: write of %d bytes at %#x: %w: it reads back differently, as shared or device memory does",
				p.pid, len(buf), addr, ErrFault)
		}
	}
	return nil
}

// poke writes through ptrace, a word at a time.
func (p *Process) poke(addr uint64, buf []byte) error {
	p.mu.Lock()
	s := p.stop
	p.mu.Unlock()
	if s == nil || len(s.threads) == 0 {
		return fmt.Errorf("process %d: write of %d bytes at %#x: %w (or the kernel heeds page permissions in /proc/PID/mem, then stop the process first)",
			p.pid, len(buf), addr, ErrFault)
	}
	return s.Do(func() error { return s.threads[0].poke(addr, buf) })
}
