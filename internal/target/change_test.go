package target_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/target"
)

// A change's groups are left out one by one; what belongs to none must be made.
func TestChangeLeavesOut(t *testing.T) {
	s := make([]*target.Site, 7)
	for i := range s {
		s[i] = &target.Site{Addr: uint64(i)}
	}
	c := &target.Change{
		Add: s[:1], Remove: s[1:2],
		Groups: []*target.Group{{Add: s[2:3], Remove: s[3:4]}, {Add: s[4:5]}, {Remove: s[5:6]}},
	}
	check := func(what string, add, remove []*target.Site) {
		t.Helper()
		o := c.Open()
		if !slices.Equal(o.Add, add) || !slices.Equal(o.Remove, remove) || len(o.Groups) > 0 {
			t.Errorf("%s: %v, %v are added, removed", what, o.Add, o.Remove)
		}
	}
	check("all", []*target.Site{s[0], s[2], s[4]}, []*target.Site{s[1], s[3], s[5]})
	why := &target.BusyError{TID: 12, Addr: 0x400, Why: "it sleeps there"}
	b := target.Blocks{}
	b.Block(s[3], why)
	b.Block(s[3], errors.New("not the first reason"))
	if err := c.LeaveOut(b); err != nil || c.Groups[0].Blocked != error(why) || c.Groups[1].Blocked != nil {
		t.Errorf("left out: %v, %v, %v", err, c.Groups[0].Blocked, c.Groups[1].Blocked)
	}
	check("a group is left out", []*target.Site{s[0], s[4]}, []*target.Site{s[1], s[5]})
	b.Block(s[1], why)
	if err := c.LeaveOut(b); err != error(why) {
		t.Errorf("what must be made is blocked: %v", err)
	}
	if !errors.Is(why, target.ErrBlocked) || !errors.Is(why, syscall.EBUSY) || why.Error() != "thread 12 is in the way at 0x400: it sleeps there" {
		t.Errorf("%v", why)
	}
	c.Begin()
	check("anew", []*target.Site{s[0], s[2], s[4]}, []*target.Site{s[1], s[3], s[5]})
}
