// Package instances knows of the calls in progress of return probes by their instances: it counts them, reclaims those of
// calls that never return, and says which event numbers may be used again.
package instances

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// Target is what the package needs of a target.Target.
type Target interface {
	Capabilities() target.Capabilities
	Ring() *ring.Ring
	Commit(*target.Change) error
	Instances() (active, unwound map[int]int, err error)
}

var _ Target = target.Target(nil)

// Probe is a return probe with its instances. A nil *Probe has none, and never had.
type Probe struct {
	ID   int        // the number of its event
	Pool *arch.Pool // where its instances are
	// NoEntryHandler: no handler is asked at the entry whether the call is to be followed. Then a thread in code that was
	// taken out may still claim an instance.
	NoEntryHandler bool
	// Changed is called when Counts has changed since the probe has ended; nil: nobody wants to know.
	Changed func()

	clear bool // no call has an instance: the probe's code is out, or was never in
	// What has become of calls whose instances were reclaimed.
	reclaimed calls
	// What the instances were of that were there at the end.
	final  calls
	missed uint64 // entries without an instance, when the Reclaimer last looked
}

// calls are calls that have begun and whose returns were not seen.
type calls struct {
	active  uint64 // in progress when the probe's code was taken out
	unwound uint64 // left by unwinding, or by the end of their thread
}

// MarkClear notes that no code of the probe is in the target, and no call has an instance.
func (p *Probe) MarkClear() {
	if p != nil {
		p.clear = true
	}
}

// Clear says whether it is known that no call has an instance.
func (p *Probe) Clear() bool { return p == nil || p.clear }

// Counts tells of the calls whose instances are not taken any more, and which have not returned: those in progress when the
// probe's code was taken out, and those that were left by unwinding or by the end of their thread. Those of the latter
// that an entry has found are in the ring.
func (p *Probe) Counts() (active, unwound uint64) {
	if p == nil {
		return 0, 0
	}
	return p.final.active + p.reclaimed.active, p.final.unwound + p.reclaimed.unwound
}
