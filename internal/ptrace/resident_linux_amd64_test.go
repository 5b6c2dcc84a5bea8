package ptrace

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/procfs"
)

// What the kernel lists at once is what it tells of each page.
func TestResidents(t *testing.T) {
	const limit, asks = 256 << 20, 16 << 20
	p := run(t, build(t, "live"), "3").open()
	s := stop(t, p)
	defer release(t, s)
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	const both = procfs.PermRead | procfs.PermWrite
	maps = slices.DeleteFunc(maps, func(m procfs.Map) bool { return m.Perm&both != both })
	scanned := &Residents{Process: p, Limit: limit, Asks: asks}
	asked := &Residents{Process: p, Limit: limit, Asks: asks, NoScan: true}
	for _, r := range []*Residents{scanned, asked} {
		if all, err := r.Find(maps); !all || err != nil {
			t.Errorf("all: %v, %v", all, err)
		}
	}
	if !slices.Equal(scanned.Found, asked.Found) || len(asked.Found) == 0 || scanned.Limit != asked.Limit || asked.Asks == asks {
		t.Errorf("%+v, asked %+v", scanned.Found, asked.Found)
	}
}
