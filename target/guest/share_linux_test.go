package guest_test

import (
	"cmp"
	"errors"
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
	"kprobes.dev/kprobes/target/guest"
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
func (p *probed) armAll(count bool, defs ...string) ([]*kprobes.Event, *share) {
	p.Helper()
	s := &share{reasons: map[string]int{}}
	start := time.Now()
	evs := p.add(&kprobes.AddOptions{Count: count, Tactic: "jump", Skip: s.skip}, defs...)
	s.armed = len(evs)
	p.Logf("%q in %v: %v", defs, time.Since(start).Round(time.Millisecond), s)
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

// everything are patterns over all functions of the kernel. Functions take both at once, but
// not all of them: some have an entry only.
var everything = []struct {
	defs  []string
	count bool
	least int
}{
	{[]string{"p *"}, true, 30000},
	{[]string{"r *"}, true, 28000},
	{[]string{"p *", "r [a-q]*"}, true, 50000},
	{[]string{"p * word=+0(%di):x64"}, false, 30000},
	{[]string{"p * text=+0(%si):string"}, false, 30000},
	{[]string{"r * v=%ax:x64"}, false, 28000},
}

// TestShare arms all that patterns match at once and has the guest work; then takes it out
// again.
func TestShare(t *testing.T) {
	if os.Getenv("KPROBES_E2E_LONG") == "" {
		g := testguest.Boot(t, &testguest.Options{CPUs: 2, Threads: true})
		// There are several do_poweroff and uuid_show, of which one has a cold part.
		someArmed(t, g, true, 1000, "p vfs_*", "p tcp_*", "p __x64_sys_*", "r vfs_*", "r tcp_*", "r do_poweroff*", "r uuid_show*")
		someArmed(t, g, false, 500, "p *fault* word=+0(%di):x64 text=+0(%si):string", "p *extable* text=+0(%di):string", "p *irq* word=+0(%si):x64", "p *sched* word=+0(%di):x64")
		return
	}
	for _, e := range everything {
		t.Run(strings.Join(e.defs, "; "), func(t *testing.T) {
			g := testguest.Boot(t, &testguest.Options{CPUs: 2, Threads: true, Ring: 256})
			someArmed(t, g, e.count, e.least, e.defs...)
		})
	}
}

// someArmed arms definitions, at least so many events, has the guest work, and takes them out.
func someArmed(t *testing.T, g *testguest.Guest, count bool, least int, defs ...string) {
	p := attach(t, g, nil)
	evs, s := p.armAll(count, defs...)
	if s.armed < least {
		t.Errorf("%d events are armed, want %d at least", s.armed, least)
	}
	g.Shell(everyday)
	hit, sum := 0, uint64(0)
	for _, e := range evs {
		if n := p.core.Counts(e); n.Hits > 0 {
			hit++
			sum += n.Hits
		}
	}
	t.Logf("%d events were hit, %d times", hit, sum)
	if hit < least/50 {
		t.Errorf("%d events of %d were hit", hit, len(evs))
	}
	if err := p.core.Close(p.take); err != nil && !errors.Is(err, guest.ErrInDetour) {
		t.Error(err)
	}
	g.Shell(everyday) // without
	if err := p.m.Close(); err != nil {
		t.Error(err)
	}
	p.m = nil
	for _, l := range g.Trouble() {
		t.Errorf("the guest's console: %s", l)
	}
}
