package self

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/watchpoint"
)

// Watch arms a watchpoint, while all other threads stand. No thread can come then: each stands between two instructions of the
// program, or has made a thread that stands too.
func (t *Target) Watch(w *target.Watch) (target.ExternalProbe, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.watches.Arm(w, unix.Gettid(), func(o *watchpoint.Opening) error {
		threads, err := countThreads()
		if err != nil {
			return err
		}
		for room := threads + threadSlack; ; room *= 2 {
			if err := o.Room(room); err != nil {
				return err
			}
			if err := t.attempt(&plan{opening: o}); err != nil {
				return err
			}
			if err := o.Err(); !errors.Is(err, watchpoint.ErrRoom) || room > slotCount {
				return err
			}
		}
	})
}

// threadSlack is room for threads that come before the world stops.
const threadSlack = 16

// countThreads counts the threads that there are.
func countThreads() (int, error) {
	d, err := os.Open("/proc/self/task")
	if err != nil {
		return 0, err
	}
	names, err := d.Readdirnames(-1)
	return len(names), errors.Join(err, d.Close())
}

// open opens the events of all threads, that of the stopper among them.
//
//go:norace
func (p *plan) open(w *worldState) {
	ok := p.opening.Thread(int(w.tid))
	for i := uint32(0); i < w.asked && ok; i++ {
		ok = p.opening.Thread(int(w.slots[w.list[i]].tid))
	}
}

// Uprobes reads the records that there are of watchpoints: the kernel holds no other probes here.
func (t *Target) Uprobes(f func(*target.UprobeRecord)) int { return t.watches.Poll(t.Space(), nil, f) }
