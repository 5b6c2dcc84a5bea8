//go:build linux

package kuprobe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Batch is uprobes at many places that come and go together: the kernel waits once for all of
// them when they are taken out, and not for each. They are one event of tracefs.
type Batch struct {
	p Probe
	n int
}

// OpenAll places a counting uprobe at each of several places. If the kernel refuses one of them
// none is placed, and which it was is not known.
func OpenAll(places []Place) (*Batch, error) {
	dir, err := Dir()
	if err != nil {
		return nil, fmt.Errorf("uprobes: %w", err)
	}
	name := fmt.Sprintf("b%d_%d", os.Getpid(), serial.Add(1))
	b := &Batch{p: Probe{group: group, dir: dir}}
	for _, pl := range places {
		path, err := filepath.Abs(pl.Path)
		if err == nil && (strings.ContainsAny(path, " \t\n:") || pl.Return) {
			err = fmt.Errorf("%q: a batch takes no path with blanks or colons, and no returns", path)
		}
		if err == nil {
			err = b.p.define(fmt.Sprintf("p:%s/%s %s:%#x", group, name, path, pl.Offset))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("uprobes: %w", err), b.Close())
		}
		b.p.event = name
		b.n++
	}
	if b.n == 0 {
		return b, nil
	}
	if err := b.p.arm(true); err != nil {
		return nil, errors.Join(fmt.Errorf("uprobes: %w", err), b.p.drop())
	}
	return b, nil
}

// drop removes what could not be enabled.
func (p *Probe) drop() error {
	err := unix.Rmdir(p.instance)
	p.instance = ""
	return errors.Join(err, p.Close())
}

// Counts gives how often each place was hit since OpenAll, in its order.
func (b *Batch) Counts() ([]uint64, error) {
	text, err := os.ReadFile(filepath.Join(b.p.dir, "uprobe_profile"))
	if err != nil {
		return nil, fmt.Errorf("counts of uprobes: %w", err)
	}
	var out []uint64
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // path, event, hits
		if len(f) < 3 || f[1] != b.p.event {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("counts of uprobes: %q: %w", line, err)
		}
		out = append(out, n)
	}
	if len(out) != b.n {
		return nil, fmt.Errorf("counts of uprobes: uprobe_profile has %d of %d", len(out), b.n)
	}
	return out, nil
}

// Close takes all out.
func (b *Batch) Close() error { return b.p.Close() }
