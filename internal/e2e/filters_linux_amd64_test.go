package e2e

import (
	"strings"
	"testing"
)

// A program that takes on a seccomp filter while probes stand lives: no system call is made for a probe
// any more, arguments in memory can not be read, and that is said. A filter that permits the calls
// changes nothing.
func TestFilterComesLater(t *testing.T) {
	for _, filter := range []string{"deny", "sync", "permit"} {
		t.Run(filter, func(t *testing.T) {
			p := program(t, "seccomp", "none")
			s := trace(t, p.PID, "p:a jailed n=$arg1 c=@seven:u64", "p:b jailed n=$arg1")
			right(t, p, "go 100")
			right(t, p, filter)
			right(t, p, "go 1000")
			if filter == "permit" {
				within(t, "a value again", func() bool {
					right(t, p, "go 1")
					lines := strings.Split(strings.TrimSpace(s.out.String()), "\n")
					for _, l := range lines[max(0, len(lines)-20):] {
						if strings.Contains(l, ": a: ") && strings.Contains(l, "c=7") {
							return true
						}
					}
					return false
				})
			} else {
				within(t, "the word", func() bool { return strings.Contains(s.errs.String(), "taken on a seccomp filter") })
			}
			n := right(t, p, "count")
			r := s.end()
			for _, e := range []string{"a", "b"} {
				r.counted(t, e, n["jailed"], "jump")
			}
			r.whole(t)
			for i, l := range r.of("a")[:100] {
				if l.number(t, "c") != 7 || l.number(t, "n") != uint64(i) {
					t.Fatalf("before the filter: %v", l)
				}
			}
			for _, l := range r.of("a")[100:] {
				if filter != "permit" && l.number(t, "c") != 0 {
					t.Fatalf("under the filter: %v", l)
				}
			}
		})
	}
}
