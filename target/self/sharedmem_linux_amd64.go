package self

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/target"
)

var _ target.MemorySharer = (*Target)(nil)

// ShareMemory maps memory.
func (t *Target) ShareMemory(_ string, size int) (uint64, target.SharedMemory, error) {
	at, err := t.NewTable(size)
	if err != nil {
		return 0, nil, err
	}
	m := &sharedMemory{t: t, addr: at, size: size}
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	t.shared = append(t.shared, m)
	return at, m, nil
}

// sharedMemory reads memory that is there until Close, and what was there then.
type sharedMemory struct {
	t    *Target
	addr uint64
	size int
	last []byte
}

// ReadAt reads it.
func (m *sharedMemory) ReadAt(b []byte, off int64) (int, error) {
	m.t.poolMu.Lock()
	defer m.t.poolMu.Unlock()
	if m.last != nil {
		return bytes.NewReader(m.last).ReadAt(b, off)
	}
	if err := m.t.Read(m.addr+uint64(off), b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Load reads a word.
func (m *sharedMemory) Load(off uint64) uint64 {
	m.t.poolMu.Lock()
	defer m.t.poolMu.Unlock()
	if m.last != nil {
		return binary.LittleEndian.Uint64(m.last[off:])
	}
	return atomic.LoadUint64(wordAt(uintptr(m.addr + off)))
}

// Store writes a word.
func (m *sharedMemory) Store(off, v uint64) {
	m.t.poolMu.Lock()
	defer m.t.poolMu.Unlock()
	if m.last == nil {
		atomic.StoreUint64(wordAt(uintptr(m.addr+off)), v)
	}
}

// keepShared notes what shared memory holds, which is about to go.
func (t *Target) keepShared() {
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	for _, m := range t.shared {
		m.last = bytes.Clone(bytesAt(m.addr, m.size))
	}
	t.shared = nil
}
