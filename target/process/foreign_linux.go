package process

import (
	"bytes"
	"errors"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.Exposed = (*Target)(nil)

// Reachable says whether a kernel uprobe that somebody places on the program's file comes to stand at a site:
// its page is not a private copy.
func (t *Target) Reachable(s *target.Site) bool {
	return !t.text.private[procfs.PageDown(s.Addr)]
}

// Written gives those of sites whose bytes are not their patches any more. Those of a page are read at once.
// What is not mapped any more is none of them.
func (t *Target) Written(sites []*target.Site) (out []*target.Site, err error) {
	defer func() { err = asGone(err) }()
	var page [procfs.PageSize]byte
	for i := 0; i < len(sites); {
		lo, n := sites[i].Addr, i
		for n < len(sites) && procfs.PageDown(sites[n].Addr) == procfs.PageDown(lo) {
			n++
		}
		last := sites[n-1]
		have := page[:last.Addr+uint64(len(last.Patch))-lo]
		if err := t.p.ReadMem(lo, have); err != nil && !errors.Is(err, ErrFault) {
			return nil, err
		} else if err == nil {
			for _, s := range sites[i:n] {
				if !bytes.Equal(have[s.Addr-lo:][:len(s.Patch)], s.Patch) {
					out = append(out, s)
				}
			}
		}
		i = n
	}
	return out, nil
}
