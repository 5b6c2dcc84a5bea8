package process

import (
	"slices"

	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Remaining gives the sites that have been taken out and whose detours could not be freed yet. It may be
// asked for at any time.
func (t *Target) Remaining() []*target.Site {
	t.asked.Lock()
	defer t.asked.Unlock()
	return slices.Clone(t.zombie)
}

func (t *Target) setZombies(sites []*target.Site) {
	t.asked.Lock()
	defer t.asked.Unlock()
	t.zombie = sites
}

// Idle says whether no thread was in the code of a site that was removed, when that was last
// looked at.
func (t *Target) Idle() bool { return len(t.zombie) == 0 }

// CodeUsed is the number of bytes of generated code that are taken at present. Detours of
// probes that were removed count until no thread can be in them. It may be asked for at any time.
func (t *Target) CodeUsed() (n uint64) {
	t.asked.Lock()
	defer t.asked.Unlock()
	for _, c := range t.code {
		n += c.Used()
	}
	return n
}

func (t *Target) setCode(pieces []*patch.Piece) {
	t.asked.Lock()
	defer t.asked.Unlock()
	t.code = pieces
}

// SharedText says why a page with a probe is no private copy, so that a kernel uprobe that comes
// later can fall into the probe; nil: all are copies, or that was not asked for. It may be asked for at any
// time.
func (t *Target) SharedText() error {
	t.asked.Lock()
	defer t.asked.Unlock()
	return t.text.why
}
