package qemu

import (
	"slices"
	"sync"
	"time"
)

// maxPauses is how many pauses are remembered.
const maxPauses = 4096

// pauses remembers the newest pauses, oldest first.
type pauses struct {
	mu   sync.Mutex
	list []time.Duration
}

func (p *pauses) add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) == maxPauses {
		p.list = slices.Delete(p.list, 0, maxPauses/2)
	}
	p.list = append(p.list, d)
}

// paused notes a pause of the vCPUs.
func (m *Machine) paused(d time.Duration) {
	m.pauses.add(d)
	if m.opt.Paused != nil {
		m.opt.Paused(d)
	}
}

// Pauses tells for how long the vCPUs stood still because of us, each time: by the clock here,
// from before they were told to stop until they were told to run. The newest 2048 at least are known, the
// oldest first.
func (m *Machine) Pauses() []time.Duration {
	m.pauses.mu.Lock()
	defer m.pauses.mu.Unlock()
	return slices.Clone(m.pauses.list)
}
