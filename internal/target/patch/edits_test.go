package patch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// text is a site at an offset from 0x1000.
func text(off uint64, orig, patch string) *target.Site {
	return &target.Site{Addr: 0x1000 + off, Orig: []byte(orig), Patch: []byte(patch)}
}

var errTheirs = errors.New("somebody else's")

// apply does to a memory what a target does: it reads and settles all runs, and writes them if every new site may be written.
func apply(runs []Run, mem []byte, breakpoint string) (writes []string, left []uint64, err error) {
	for i := range runs {
		r := &runs[i]
		copy(r.Have, mem[r.Addr-0x1000:])
		if s := r.Resolve([]byte(breakpoint)); s != nil {
			return nil, nil, r.Foreign(s, errTheirs)
		}
		r.Left(func(s *target.Site) { left = append(left, s.Addr-0x1000) })
	}
	for i := range runs {
		if r := &runs[i]; r.Changed() {
			copy(mem[r.Addr-0x1000:], r.New)
			writes = append(writes, fmt.Sprintf("%d %s", r.Addr-0x1000, r.New))
		}
	}
	return writes, left, nil
}

// The program is "abcdefghijklmnop". Patches are written in digits, or in capitals; a breakpoint is "!".
func TestEdits(t *testing.T) {
	jump, anew, next, far := text(0, "abcde", "12345"), text(0, "abcde", "98765"), text(3, "defgh", "ABCDE"), text(10, "klmno", "KLMNO")
	trap := text(0, "a", "!")
	older := text(0, "abcde", "xxxxx") // was left to somebody else who has gone
	for _, c := range []struct {
		name        string
		add, remove []*target.Site
		have, brk   string
		want        string
		writes      []string
		left        []uint64
		refused     bool
	}{
		{"arm", []*target.Site{jump}, nil, "abcdefghijklmnop", "!", "12345fghijklmnop", []string{"0 12345"}, nil, false},
		{"arm over somebody's bytes", []*target.Site{jump}, nil, "abcdXfghijklmnop", "!", "", nil, nil, true},
		{"arm over somebody's breakpoint", []*target.Site{jump}, nil, "!bcdefghijklmnop", "!", "", nil, nil, true},
		{"what stands behind a site does not matter", []*target.Site{jump, far}, nil, "abcdefghijklmnoX", "!", "12345fghijKLMNOX", []string{"0 12345", "10 KLMNO"}, nil, false},
		{"one of two is refused", []*target.Site{jump, far}, nil, "abcdefghijklmnXp", "!", "", nil, nil, true},
		{"disarm", nil, []*target.Site{jump}, "12345fghijklmnop", "!", "abcdefghijklmnop", []string{"0 abcde"}, nil, false},
		{"disarm what is not there", nil, []*target.Site{jump}, "abcdefghijklmnop", "!", "abcdefghijklmnop", nil, nil, false},
		{"a debugger has put one of its bytes back", nil, []*target.Site{jump}, "a2345fghijklmnop", "!", "abcdefghijklmnop", []string{"0 abcde"}, nil, false},
		{"somebody's breakpoint stays", nil, []*target.Site{jump}, "!2345fghijklmnop", "!", "!bcdefghijklmnop", []string{"0 !bcde"}, nil, false},
		{"where breakpoints are nobody's", nil, []*target.Site{jump}, "!2345fghijklmnop", "", "!2345fghijklmnop", nil, []uint64{0}, false},
		{"a breakpoint of ours goes", nil, []*target.Site{trap}, "!bcdefghijklmnop", "!", "abcdefghijklmnop", []string{"0 a"}, nil, false},
		{"somebody's bytes stay, all", nil, []*target.Site{jump}, "1X345fghijklmnop", "!", "1X345fghijklmnop", nil, []uint64{0}, false},
		{"the others are taken out all the same", nil, []*target.Site{jump, far}, "1X345fghijKLMNOp", "!", "1X345fghijklmnop", []string{"10 klmno"}, []uint64{0}, false},
		{"replace, in one write", []*target.Site{anew}, []*target.Site{jump}, "12345fghijklmnop", "!", "98765fghijklmnop", []string{"0 98765"}, nil, false},
		{"replace by a longer one", []*target.Site{jump}, []*target.Site{trap}, "!bcdefghijklmnop", "!", "12345fghijklmnop", []string{"0 12345"}, nil, false},
		{"replace by a shorter one", []*target.Site{trap}, []*target.Site{jump}, "12345fghijklmnop", "!", "!bcdefghijklmnop", []string{"0 !bcde"}, nil, false},
		{"replace by one further on", []*target.Site{next}, []*target.Site{jump}, "12345fghijklmnop", "!", "abcABCDEijklmnop", []string{"0 abcABCDE"}, nil, false},
		{"replace by one further back", []*target.Site{jump}, []*target.Site{next}, "abcABCDEijklmnop", "!", "12345fghijklmnop", []string{"0 12345fgh"}, nil, false},
		{"replace what is not there any more", []*target.Site{anew}, []*target.Site{jump}, "abcdefghijklmnop", "!", "98765fghijklmnop", []string{"0 98765"}, nil, false},
		{"replace what somebody has written over", []*target.Site{anew}, []*target.Site{jump}, "1X345fghijklmnop", "!", "", nil, nil, true},
		{"replace under somebody's breakpoint", []*target.Site{anew}, []*target.Site{jump}, "!2345fghijklmnop", "!", "", nil, nil, true},
		{"two at one place, the last one stands", nil, []*target.Site{older, jump}, "12345fghijklmnop", "!", "abcdefghijklmnop", []string{"0 abcde"}, nil, false},
		{"two at one place, and somebody's bytes", nil, []*target.Site{older, jump}, "?????fghijklmnop", "!", "?????fghijklmnop", nil, []uint64{0, 0}, false},
		{"neighbours are one write", []*target.Site{jump, text(5, "fg", "67")}, nil, "abcdefghijklmnop", "!", "1234567hijklmnop", []string{"0 1234567"}, nil, false},
	} {
		for _, span := range []Span{Joined, 16} {
			runs, err := Runs(c.add, c.remove, span)
			if err != nil {
				t.Fatal(err)
			}
			mem := []byte(c.have)
			writes, left, err := apply(runs, mem, c.brk)
			if c.refused {
				if !errors.Is(err, errTheirs) || !errors.Is(err, syscall.EBUSY) || !strings.HasPrefix(err.Error(), "0x100") || string(mem) != c.have {
					t.Errorf("%s: %v, %s", c.name, err, mem)
				}
				continue
			}
			if err != nil || string(mem) != c.want || !slices.Equal(left, c.left) || span == Joined && !slices.Equal(writes, c.writes) || len(writes) > 1 && span == 16 {
				t.Errorf("%s: %s, written %q, left %d, %v", c.name, mem, writes, left, err)
			}
		}
	}
}

// Sites of one page are written at once, those of two are not, unless they share bytes.
func TestRunsOfPages(t *testing.T) {
	a, b, c := text(0xff0, "abcde", "12345"), text(0x20, "abcde", "12345"), text(0x1000, "abcde", "12345")
	for _, x := range []struct {
		span Span
		want string
	}{
		{Joined, "[0x1020 5] [0x1ff0 5] [0x2000 5]"},
		{0x1000, "[0x1020 4053] [0x2000 5]"},
	} {
		runs, err := Runs([]*target.Site{a, b}, []*target.Site{c}, x.span)
		var got []string
		for _, r := range runs {
			got = append(got, fmt.Sprintf("[%#x %d]", r.Addr, len(r.New)))
			if r.Adds() != (r.Addr < 0x2000) {
				t.Errorf("0x%x adds: %v", r.Addr, r.Adds())
			}
		}
		if s := strings.Join(got, " "); err != nil || s != x.want {
			t.Errorf("span %d: %s, %v", x.span, s, err)
		}
	}
}

// Patches of two functions may touch, and not overlap.
func TestRunsApart(t *testing.T) {
	a, b := text(5, "abcde", "12345"), text(0, "abcde", "12345")
	if _, err := Runs([]*target.Site{a, b}, nil, Joined); err != nil {
		t.Error(err)
	}
	for _, at := range []uint64{1, 4, 5, 9} {
		if _, err := Runs([]*target.Site{a, b, text(at, "abcde", "12345")}, nil, Joined); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a patch at 0x%x: %v", 0x1000+at, err)
		}
	}
	if _, err := Runs([]*target.Site{a}, []*target.Site{text(7, "abcde", "12345")}, Joined); err != nil {
		t.Errorf("a patch over one that goes: %v", err)
	}
}

// A breakpoint of several bytes stands whole, or is none.
func TestWithout(t *testing.T) {
	s := text(0, "aaaabbbb", "11112222")
	for have, want := range map[string]string{
		"11112222": "aaaabbbb", "aaaa2222": "aaaabbbb", "!?!?2222": "!?!?bbbb", "1111!?!?": "aaaa!?!?", "!?!?!?!?": "!?!?!?!?",
		"11!?!?22": "aa!?!?bb", "!?!22222": "", "11112!?!": "", "1111222X": "",
	} {
		b := []byte(have)
		got, ok := Without(s, b, []byte("!?!?"))
		if string(got) != want || ok != (want != "") || string(b) != have {
			t.Errorf("%s: %s, want %s", have, got, want)
		}
	}
}

func TestResolveAllocates(t *testing.T) {
	runs, err := Runs([]*target.Site{text(3, "defgh", "ABCDE")}, []*target.Site{text(0, "abcde", "12345")}, Joined)
	if err != nil {
		t.Fatal(err)
	}
	copy(runs[0].Have, "12345fgh")
	brk := []byte("!")
	if n := testing.AllocsPerRun(100, func() { runs[0].Resolve(brk); runs[0].Changed() }); n > 0 {
		t.Errorf("%v allocations in a stop", n)
	}
}

func TestTries(t *testing.T) {
	a := Tries{N: 4, Wait: 2 * time.Millisecond, Most: 5 * time.Millisecond}
	for i, want := range []time.Duration{0, 2 * time.Millisecond, 4 * time.Millisecond, 5 * time.Millisecond} {
		if got := a.Pause(i); got != want {
			t.Errorf("before attempt %d: %v", i, got)
		}
	}
	a.Most = 0
	if got := a.Pause(10); got != 20*time.Millisecond {
		t.Error(got)
	}
	n := 0
	for i := range (Tries{N: 3}).All() {
		if i != n {
			t.Errorf("attempt %d is called %d", n, i)
		}
		n++
	}
	for range (Tries{N: 3, Wait: time.Hour}).All() {
		n++
		break // no pause before the first, none behind the last
	}
	if n != 4 {
		t.Errorf("%d attempts", n)
	}
	for _, c := range []struct {
		c    target.Change
		err  error
		want bool
	}{
		{target.Change{}, nil, false},
		{target.Change{}, target.ErrBlocked, true},
		{target.Change{}, &target.BusyError{}, true},
		{target.Change{}, syscall.EBUSY, false},
		{target.Change{Once: true}, target.ErrBlocked, false},
		{target.Change{Once: true, Made: true}, target.ErrBlocked, true}, // what Then does is blocked
	} {
		if got := Again(&c.c, c.err); got != c.want {
			t.Errorf("%+v, %v: again %v", c.c, c.err, got)
		}
	}
}
