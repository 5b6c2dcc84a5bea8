package self

import (
	"bytes"
	"slices"

	"kprobes.dev/kprobes/internal/target"
)

var _ target.Exposed = (*Target)(nil)

// Reachable says that a kernel uprobe comes to stand at any site: the program's text stays mapped from its file.
func (t *Target) Reachable(*target.Site) bool { return true }

// Written gives those of sites whose bytes are not their patches any more. It is called ten times a second, and allocates nothing if there
// are none.
func (t *Target) Written(sites []*target.Site) (out []*target.Site, err error) {
	for _, s := range sites {
		t.read = slices.Grow(t.read[:0], len(s.Patch))
		have := t.read[:len(s.Patch)]
		if _, err := t.mem.ReadAt(have, int64(s.Addr)); err != nil {
			continue // it is not mapped any more
		}
		if !bytes.Equal(have, s.Patch) {
			out = append(out, s)
		}
	}
	return out, nil
}
