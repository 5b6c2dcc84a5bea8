package trace

import (
	"sync"

	"kprobes.dev/kprobes"
)

// Self is the trace instance of the process itself: one, that package debughttp serves and
// package autoprobe fills. The process is opened by the first call that succeeds.
func Self() (*Instance, error) {
	self.mu.Lock()
	defer self.mu.Unlock()
	if self.in != nil {
		return self.in, nil
	}
	core, err := kprobes.Self()
	if err != nil {
		return nil, err
	}
	self.in = New(core, nil)
	return self.in, nil
}

var self struct {
	mu sync.Mutex
	in *Instance
}
