package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64/amd64gdb"
	"kprobes.dev/kprobes/internal/errno"
)

// yieldFor is how long Yield lets the vCPUs run.
const yieldFor = time.Millisecond

// Stop is a machine whose vCPUs stand still. It is valid until the function that it was
// given to returns.
type Stop struct {
	m     *Machine
	ran   bool // the vCPUs ran before, and are to run again
	stood bool // they stand
	began time.Time
	err   error // the connection is not to be trusted any more
}

// Write is bytes to be written to guest-physical memory.
type Write struct {
	PA   uint64
	Data []byte
}

// Stopped stops all vCPUs, calls f, and lets them run again, also if f fails, panics or ends
// the goroutine. Vcpus that whoever owns the machine had stopped before stay stopped. f must
// use neither Stopped nor Break.
func (m *Machine) Stopped(f func(*Stop) error) (err error) {
	release, err := m.acquire()
	if err != nil {
		return err
	}
	defer release()
	s, err := m.halt()
	if err != nil {
		return err
	}
	defer func() {
		if e := s.release(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return f(s)
}

// acquire makes the caller the only one who talks to the gdb stub, which is connected if it
// was not.
func (m *Machine) acquire() (release func(), err error) {
	m.mu.Lock()
	defer func() {
		if err != nil {
			m.mu.Unlock()
		}
	}()
	switch {
	case m.closed:
		return nil, errno.Errorf(unix.EBADF, "guest: the machine was closed")
	case m.opt.Unlocked:
		return nil, errno.Errorf(unix.EBADF, "guest: the machine was opened for reading only")
	}
	if err := m.checkSize(); err != nil {
		return nil, err
	}
	if m.stub == nil {
		if err := m.connect(); err != nil {
			return nil, err
		}
	}
	back, err := m.watcher.park()
	if err != nil {
		return nil, err
	}
	return func() {
		back()
		m.mu.Unlock()
	}, nil
}

// connect starts the guardian and connects to the gdb stub, which stops the vCPUs; they run
// again if they ran.
func (m *Machine) connect() error {
	ran, status, err := m.mon.running()
	if err != nil {
		return err
	}
	ran = ran || status == atBreakpoint // somebody who is gone has left it there
	if m.opt.Guardian != nil && m.guardian == nil {
		if m.guardian, err = m.opt.Guardian(m.spec, m.file); err != nil {
			return fmt.Errorf("guardian of the guest: %w", err)
		}
	}
	began := time.Now()
	g, err := dialStub(m.spec.GDB)
	if ran && err == nil {
		err = g.resume("c")
	}
	if err != nil {
		if ran {
			err = errors.Join(err, m.mon.run("cont", nil, nil))
		}
		return withFlags(err)
	}
	m.paused(time.Since(began))
	m.stub = g
	m.watcher = watch(m, g)
	return nil
}

// halt stops the vCPUs.
func (m *Machine) halt() (*Stop, error) {
	ran, status, err := m.mon.running()
	if err != nil {
		return nil, err
	}
	s := &Stop{m: m, ran: ran, began: time.Now()}
	switch {
	case ran:
		return s, s.halt()
	case status == atBreakpoint: // one was met while the watcher was asked to let go
		s.ran = true
		return s, s.stand(m.stub.stopReply())
	}
	s.stood = true
	return s, nil
}

// atBreakpoint is QEMU's word for a machine that its gdb stub has stopped.
const atBreakpoint = "debug"

// halt stops vCPUs that run.
func (s *Stop) halt() error {
	return s.stand(s.m.stub.interrupt())
}

// stand takes the stop reply of vCPUs that stand now. A watchpoint may have stopped them: the access is over, and not told again.
func (s *Stop) stand(reply string, err error) error {
	if err == nil {
		s.stood = true
		_, err = s.m.watcher.accessed(s, reply)
	}
	if err != nil {
		return s.broken(err)
	}
	return nil
}

// broken gives up the gdb stub, whose client we no longer understand, removes the
// breakpoints through a new connection, and lets the vCPUs run.
func (s *Stop) broken(err error) error {
	s.err = err
	s.stood = false
	s.m.stub.close()
	if !errors.Is(err, ErrGone) && !errors.Is(err, errGivenUp) {
		err = errors.Join(err, release(s.m.spec.GDB, s.m.mon))
	}
	return fmt.Errorf("stop of the guest: %w", err)
}

// release lets the vCPUs run.
func (s *Stop) release() error {
	if !s.stood {
		return nil
	}
	s.stood = false
	if !s.ran {
		if err := s.m.stub.acknowledge(); err != nil {
			return s.broken(err)
		}
		return nil
	}
	if err := s.m.stub.resume("c"); err != nil {
		return s.broken(err)
	}
	s.m.paused(time.Since(s.began))
	return nil
}

func (s *Stop) usable() error {
	switch {
	case s.err != nil:
		return s.err
	case !s.stood:
		return errno.Errorf(unix.EBADF, "guest: this stop is over")
	}
	return nil
}

// CPUs reads the registers of every vCPU, by index.
func (s *Stop) CPUs() ([]CPU, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := s.m.stub.learnThreads(); err != nil {
		return nil, err
	}
	var cmds []string
	for _, id := range s.m.stub.threads {
		cmds = append(cmds, "Hg"+id, "g")
	}
	answers, err := s.m.stub.ask(cmds...)
	if err != nil {
		return nil, err
	}
	cpus := make([]CPU, len(s.m.stub.threads))
	for i := range cpus {
		if cpus[i], err = amd64gdb.Parse(i, answers[2*i+1]); err != nil {
			return nil, err
		}
	}
	return cpus, nil
}

// SetCPU gives a vCPU, by its index, the general registers, RIP and RFLAGS of c. Other
// registers are not changed.
func (s *Stop) SetCPU(c *CPU) error {
	if err := s.usable(); err != nil {
		return err
	}
	if c.Index < 0 || c.Index >= len(s.m.stub.threads) {
		return errno.Errorf(unix.EINVAL, "vCPU %d: there are %d", c.Index, len(s.m.stub.threads))
	}
	select_ := "Hg" + s.m.stub.threads[c.Index]
	answers, err := s.m.stub.ask(select_, "g")
	if err != nil {
		return err
	}
	old, err := amd64gdb.Parse(c.Index, answers[1])
	if err != nil {
		return err
	}
	return s.m.stub.must(append([]string{select_}, c.Changes(&old)...)...)
}

// FlushTLBs has the vCPUs forget what they remember of page tables. Call it after an entry was cleared: what a vCPU remembers of
// one that is not global goes else with the next change of its page table, which may be long after.
func (s *Stop) FlushTLBs() error {
	cpus, err := s.CPUs()
	if err != nil {
		return err
	}
	var cmds []string
	for i := range cpus {
		if reload := cpus[i].Reload(); reload != "" {
			cmds = append(cmds, "Hg"+s.m.stub.threads[i], reload)
		}
	}
	return s.m.stub.must(cmds...)
}

// WritePhys writes to guest-physical memory so that the vCPUs execute what was written, also
// where they have executed those bytes before.
func (s *Stop) WritePhys(pa uint64, b []byte) error { return s.WriteAll([]Write{{pa, b}}) }

// WriteAll is WritePhys for many writes, in order. Nothing is written if one of them is not
// to RAM; what was written is read back.
func (s *Stop) WriteAll(writes []Write) error {
	if err := s.usable(); err != nil {
		return err
	}
	var cmds []string
	for _, w := range writes {
		if s.m.memory(w.PA, len(w.Data)) == nil {
			return errno.Errorf(unix.EFAULT, "write of %d bytes at %#x: not the guest's RAM", len(w.Data), w.PA)
		}
		cmds = s.m.stub.appendWrite(cmds, w)
	}
	if err := s.m.stub.must(cmds...); err != nil {
		return err
	}
	return s.verify(writes)
}

// verify checks that what was written is there, but for what a later write has replaced.
func (s *Stop) verify(writes []Write) error {
	for i, w := range writes {
		have := s.m.memory(w.PA, len(w.Data))
		if bytes.Equal(have, w.Data) || slices.ContainsFunc(writes[i+1:], w.overlaps) {
			continue
		}
		return errno.Errorf(unix.EIO, "write of % x at %#x: % x stands there: %s is not this guest's memory", w.Data, w.PA, have, s.m.spec.Memory)
	}
	return nil
}

func (w Write) overlaps(o Write) bool {
	return w.PA < o.PA+uint64(len(o.Data)) && o.PA < w.PA+uint64(len(w.Data))
}

// memory is Bytes, and the ivshmem device's memory.
func (m *Machine) memory(pa uint64, n int) []byte {
	if b := m.Bytes(pa, n); b != nil {
		return b
	}
	if size := uint64(len(m.ring)); m.ringPA != 0 && pa >= m.ringPA && pa-m.ringPA < size && uint64(n) <= size-(pa-m.ringPA) {
		return m.ring[pa-m.ringPA:][:n:n]
	}
	return nil
}

// Bytes reads the guest's memory, as the machine's Bytes.
func (s *Stop) Bytes(pa uint64, n int) []byte { return s.m.Bytes(pa, n) }

// Yield lets the vCPUs run for about a millisecond, and stops them again. It fails with
// ErrPaused where they did not run before. After an error the stop is over.
func (s *Stop) Yield() error {
	if err := s.usable(); err != nil {
		return err
	}
	if !s.ran {
		return ErrPaused
	}
	if err := s.release(); err != nil {
		return err
	}
	time.Sleep(yieldFor)
	s.began = time.Now()
	return s.halt()
}

// appendWrite adds the commands for a write, in pieces that the stub can take.
func (g *stub) appendWrite(cmds []string, w Write) []string {
	const head = 64 // bytes for all but the data
	for piece := range slices.Chunk(w.Data, (g.size-head)/2) {
		cmds = append(cmds, fmt.Sprintf("M%x,%x:%x", w.PA, len(piece), piece))
		w.PA += uint64(len(piece))
	}
	return cmds
}

// leave undoes what was done through the gdb stub, at the end.
func (m *Machine) leave() error {
	if m.stub == nil {
		return nil
	}
	back, err := m.watcher.park()
	if err != nil {
		m.stub.close()
		return nil // QEMU is gone, and all with it, or broken has tidied up
	}
	s, err := m.halt()
	if err == nil {
		err = s.leave()
	}
	m.stub.close()
	back()
	<-m.watcher.done
	if errors.Is(err, ErrGone) || errors.Is(err, errGivenUp) {
		return nil
	}
	return err
}

func (s *Stop) leave() error {
	g := s.m.stub
	cmds := []string{"Qqemu.PhyMemMode:0"}
	for addr := range s.m.points {
		cmds = append(cmds, breakCommand('z', addr))
	}
	for at := range s.m.watched {
		cmds = append(cmds, at.command('z'))
	}
	clear(s.m.points)
	clear(s.m.watched)
	if err := g.must(cmds...); err != nil {
		return s.broken(err)
	}
	s.stood = false
	if !s.ran {
		return nil
	}
	if err := g.must("D;1"); err != nil {
		return s.broken(err)
	}
	s.m.paused(time.Since(s.began))
	return nil
}
