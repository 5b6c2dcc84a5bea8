package guest_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testguest"
)

// share is how many functions take a probe, and why the others do not.
type share struct {
	armed, refused int
	reasons        map[string]int
}

// details are the parts of a reason that differ between functions.
var details = regexp.MustCompile(`0x[0-9a-f]+|\b[0-9a-f]{2}( [0-9a-f]{2})+\b|\b\d+\b|^\S+: `)

func (s *share) skip(name string, why error) {
	s.refused++
	r := strings.ReplaceAll(why.Error(), name, "F")
	s.reasons[details.ReplaceAllString(r, "N")]++
}

// String is the share as a table, the most frequent reason first.
func (s *share) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d armed, %d refused\n", s.armed, s.refused)
	keys := slices.SortedFunc(maps.Keys(s.reasons), func(a, b string) int {
		return cmp.Or(s.reasons[b]-s.reasons[a], strings.Compare(a, b))
	})
	for i, k := range keys {
		if i == 40 {
			break
		}
		fmt.Fprintf(&b, "%6d %s\n", s.reasons[k], k)
	}
	return b.String()
}

// armAll arms all functions that definitions with patterns name.
func (p *probed) armAll(defs ...string) ([]*kprobes.Event, *share) {
	p.Helper()
	s := &share{reasons: map[string]int{}}
	start := time.Now()
	evs := p.add(&kprobes.AddOptions{Count: true, Tactic: "jump", Skip: s.skip}, defs...)
	s.armed = len(evs)
	p.Logf("%q in %v: %v", defs, time.Since(start), s)
	return evs, s
}

// everyday is a load of the guest that many parts of its kernel take part in.
const everyday = `for i in 1 2 3; do
hit open 2000 0 & hit read 2000 1 & hit tcp 300 0 & hit write 2000 1 & wait
find / -xdev >/dev/null; cat /proc/*/stat /proc/meminfo /proc/interrupts >/dev/null
dd if=/dev/zero of=/tmp/share bs=64k count=64 2>/dev/null; md5sum /tmp/share; rm /tmp/share
mkdir -p /tmp/d/e; mv /tmp/d/e /tmp/d/f; ln -s x /tmp/d/l; rm -r /tmp/d; ps | wc -l; dmesg | tail -1; sleep 0.1
ping -c 1 127.0.0.1; mount -t tmpfs x /mnt 2>/dev/null && umount /mnt; (sleep 5 & kill $!); echo x | gzip | gunzip
done 2>&1 | grep -c x; true`

func TestShareTry(t *testing.T) {
	defs := strings.Split(os.Getenv("DEFS"), ";")
	g := testguest.Boot(t, &testguest.Options{CPUs: 2, Threads: true, Ring: 256})
	p := attach(t, g, nil)
	evs, _ := p.armAll(defs...)
	t.Log(g.Shell(everyday))
	hit, sum := 0, uint64(0)
	for _, e := range evs {
		n := p.core.Counts(e)
		if n.Hits > 0 {
			hit++
		}
		sum += n.Hits
	}
	t.Logf("%d were hit, %d times", hit, sum)
	t.Log(g.Trouble())
	if l, err := p.t.FindLeftover(); err == nil {
		for i := range l.Sites {
			if st := l.State(&l.Sites[i]); st != "[OPTIMIZED]" {
				sy, _ := p.core.Symbol(l.Sites[i].Addr)
				t.Logf("%+v: %+v orig % x patch % x %s", sy, l.Sites[i].Points, l.Sites[i].Orig, l.Sites[i].Patch, st)
			}
		}
	}
}
