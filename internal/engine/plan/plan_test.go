package plan_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

const start = 0x401000

// function analyses code.
func function(t *testing.T, code string) plan.Function {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(code, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	a, err := native.Arch.Analyse(&arch.Func{Name: "f", Addr: start, Code: b, After: bytes.Repeat([]byte{0xcc}, 8)})
	if err != nil {
		t.Fatal(err)
	}
	return plan.Function{Name: "f", Start: start, Code: a, Text: func(addr uint64, n int) ([]byte, error) {
		if addr < start || addr-start+uint64(n) > uint64(len(b)) {
			return nil, errors.New("not the function's")
		}
		return b[addr-start:][:n], nil
	}}
}

// plain is a function of which a jump fits at the entry; at loop only a breakpoint does, for the function's own jumps lead
// there and to the instruction behind.
const (
	plain = "b801000000 ffc9 ffc8 75fc 75f8 c3"
	loop  = start + 5
)

func probes(points ...uint64) (out []plan.Probe) {
	for _, p := range points {
		out = append(out, plan.Probe{Points: []uint64{p}})
	}
	return out
}

// Each row: what is asked of a plan, and the tactic or the refusal of each probe.
func TestMake(t *testing.T) {
	queued := &plan.QueuedError{Why: errors.New("a thread is there")}
	no := errors.New("SIGTRAP is blocked")
	for name, row := range map[string]struct {
		points []uint64
		c      plan.Constraints
		want   string
		only   bool
	}{
		"a jump":                       {[]uint64{start}, plan.Constraints{}, "jump", false},
		"a breakpoint where none fits": {[]uint64{loop}, plan.Constraints{}, "boost", false},
		"no breakpoint may stand":      {[]uint64{start, loop}, plan.Constraints{NoTraps: no}, "jump, refused", false},
		"forced":                       {[]uint64{start}, plan.Constraints{Force: arch.TacticStep}, "step: this tactic was asked for", false},
		"forced, and none fits":        {[]uint64{loop}, plan.Constraints{Force: arch.TacticJump}, "refused", false},
		"the knob":                     {[]uint64{start}, plan.Constraints{Trap: plan.ErrOff}, "boost: kprobes-optimization is off", false},
		"queued":                       {[]uint64{start}, plan.Constraints{Trap: queued}, "boost: queued: a thread is there", false},
		"the knob, where none may":     {[]uint64{start}, plan.Constraints{Trap: plan.ErrOff, NoTraps: no}, "jump", false},
		"the knob, and jumps only":     {[]uint64{start}, plan.Constraints{Trap: plan.ErrOff, JumpOnly: true}, "jump", true},
		"held":                         {[]uint64{start}, plan.Constraints{Held: []uint64{start}}, "refused", false},
	} {
		p := plan.Make(function(t, plain), probes(row.points...), row.c)
		var got []string
		for _, at := range row.points {
			tactic, why := p.Form([]uint64{at})
			switch err := p.Refuses([]uint64{at}); {
			case err != nil:
				got = append(got, "refused")
				if !strings.Contains(err.Error(), fmt.Sprintf("f+0x%x: no patch fits: ", at-start)) {
					t.Errorf("%s: %v", name, err)
				}
			case why != nil && row.c.Traps() || row.c.Force != "":
				got = append(got, fmt.Sprintf("%s: %v", tactic, why))
			default:
				got = append(got, string(tactic))
			}
		}
		if g := strings.Join(got, ", "); g != row.want || p.JumpOnly != row.only {
			t.Errorf("%s: %q, jumps only: %v; want %q", name, g, p.JumpOnly, row.want)
		}
	}
}

// A probe with several points has the slowest of their tactics.
func TestFormIsTheSlowest(t *testing.T) {
	p := plan.Make(function(t, plain), []plan.Probe{{Points: []uint64{start, loop}}}, plan.Constraints{})
	if tactic, why := p.Form([]uint64{start, loop}); tactic != arch.TacticBoost || why == nil {
		t.Errorf("%s, because of %v", tactic, why)
	}
}

// A plan answers who asks the same, and nobody else.
func TestAnswers(t *testing.T) {
	c := plan.Constraints{Trap: plan.ErrOff, Held: []uint64{loop}}
	p := plan.Make(function(t, plain), probes(start), c)
	if !p.Answers(probes(start), plan.Constraints{Trap: plan.ErrOff, Held: []uint64{loop}}) {
		t.Error("it does not answer the same")
	}
	slow := probes(start)
	slow[0].Slow = plan.ErrPost
	for name, ok := range map[string]bool{
		"other points": p.Answers(probes(start+7), c), "more probes": p.Answers(probes(start, loop), c), "a post handler": p.Answers(slow, c),
		"no breakpoints": p.Answers(probes(start), plan.Constraints{Trap: plan.ErrOff, Held: c.Held, NoTraps: plan.ErrAsked}),
		"nobody holds":   p.Answers(probes(start), plan.Constraints{Trap: plan.ErrOff}), "forced": p.Answers(probes(start), plan.Constraints{Force: arch.TacticJump}),
	} {
		if ok {
			t.Errorf("%s: it answers", name)
		}
	}
}

// The numbers that stand for reasons in a target's memory.
func TestReasonOf(t *testing.T) {
	p := plan.Make(function(t, plain), probes(loop), plan.Constraints{})
	_, rule := p.Form([]uint64{loop})
	for _, row := range []struct {
		why  error
		want target.Reason
	}{
		{nil, target.ReasonNone},
		{errors.New("another"), target.ReasonNone},
		{plan.ErrPost, target.ReasonPost},
		{plan.ErrBesides, target.ReasonPost},
		{plan.ErrOff, target.ReasonStraight},
		{plan.ErrAsked, target.ReasonAsked},
		{fmt.Errorf("f: %w", &plan.QueuedError{Why: rule}), target.ReasonQueued},
	} {
		if got := plan.ReasonOf(row.why); got != row.want {
			t.Errorf("%v: %d, want %d", row.why, got, row.want)
		}
	}
	if got := plan.ReasonOf(rule); got <= target.ReasonRule {
		t.Errorf("the rule %v: %d", rule, got)
	}
}

// room gives code addresses from near on, and remembers what was kept.
type room struct {
	at    uint64
	sizes []int // that were asked for
	kept  []int
	err   error
}

func (r *room) Take(_, _ uint64, size int) (uint64, error) {
	r.sizes = append(r.sizes, size)
	return r.at, r.err
}

func (r *room) Keep(n int)                       { r.kept, r.at = append(r.kept, n), r.at+uint64(n) }
func (r *room) Span(addr uint64) (lo, hi uint64) { return addr, addr }
func count(id int) arch.ProbeOp                  { return arch.ProbeOp{Event: id, Role: arch.RoleRecord, Count: true} }

// env is that of a process whose threads have no rseq areas.
func env(t *testing.T) *arch.CodegenEnv {
	l, err := ring.NewLayout(ring.Config{CPUs: 2, Events: 512, DataSize: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	return &arch.CodegenEnv{Ring: 0x70000000, Layout: l}
}

func made(t *testing.T, p *plan.Plan, o plan.Ops, r *room) (int, error) {
	s, err := p.Sites(native.Arch, o, r, env(t), nil)
	return len(s), err
}

// A site has the bytes of the program, the patch that leads to its detour, and what stands at its points.
func TestSites(t *testing.T) {
	f := function(t, plain)
	p := plan.Make(f, []plan.Probe{{Points: []uint64{start}, Slow: plan.ErrPost}, {Points: []uint64{loop}}}, plan.Constraints{})
	ops := plan.Ops{}
	ops.Add(start, count(1), count(1), count(2))
	ops.Add(loop, count(3))
	r := &room{at: start + 0x10000}
	sites, err := p.Sites(native.Arch, ops, r, env(t), nil)
	if err != nil || len(sites) != 2 || len(r.kept) != 2 {
		t.Fatalf("%d sites, %v; kept %v", len(sites), err, r.kept)
	}
	jump, trap := sites[0], sites[1]
	if text, _ := f.Text(start, len(jump.Patch)); jump.Addr != start || jump.Trap || !bytes.Equal(jump.Orig, text) || len(jump.Patch) != 5 || jump.Reason != target.ReasonPost {
		t.Errorf("the jump's site: %+v", jump)
	}
	if to := jump.Addr + 5 + uint64(int64(int32(uint32(jump.Patch[1])|uint32(jump.Patch[2])<<8|uint32(jump.Patch[3])<<16|uint32(jump.Patch[4])<<24))); to != jump.Detour.Addr {
		t.Errorf("the jump leads to 0x%x, the detour is at 0x%x", to, jump.Detour.Addr)
	}
	if len(jump.Points) != 1 || jump.Points[0] != (target.Point{Addr: start, Probes: 2}) {
		t.Errorf("points %+v: two works of one probe are one probe", jump.Points)
	}
	if trap.Addr != loop || !trap.Trap || len(trap.Patch) != 1 || trap.Reason <= target.ReasonRule {
		t.Errorf("the breakpoint's site: %+v", trap)
	}
	for i, s := range sites {
		if s.Room != r.kept[i] || s.Room < len(s.Detour.Code) || s.Room >= len(s.Detour.Code)+64 {
			t.Errorf("site %d: %d bytes of code in %d, kept %d", i, len(s.Detour.Code), s.Room, r.kept[i])
		}
	}
}

// What keeps a site from being made is told with the instruction that it is about, so that another tactic may serve it.
func TestSitesRefused(t *testing.T) {
	f := function(t, plain)
	ops := plan.Ops{}
	ops.Add(start, count(1))
	var at *arch.PointError
	if n, err := made(t, plan.Make(f, probes(start, loop), plan.Constraints{NoTraps: plan.ErrAsked}), ops, &room{}); n != 0 || !errors.As(err, &at) || at.Addr != loop {
		t.Errorf("%d sites of a plan that refuses: %v", n, err)
	}
	full := errors.New("no room")
	if n, err := made(t, plan.Make(f, probes(start), plan.Constraints{}), ops, &room{err: full}); n != 0 || !errors.Is(err, full) || !strings.HasPrefix(err.Error(), "f+0x0: ") {
		t.Errorf("%d sites without room: %v", n, err)
	}
	gone := errors.New("the page goes away")
	_, err := plan.Make(f, probes(start), plan.Constraints{}).Sites(native.Arch, ops, &room{}, env(t), func(uint64) error { return gone })
	if !errors.As(err, &at) || at.Addr != start || !errors.Is(err, gone) {
		t.Errorf("where no code may stand: %v", err)
	}
}

// A detour that does not fit what is tried first is generated anew with the room that it needs.
func TestLargeDetour(t *testing.T) {
	ops := plan.Ops{}
	for id := range 400 {
		ops.Add(start, count(id))
	}
	r := &room{at: start + 0x10000}
	sites, err := plan.Make(function(t, plain), probes(start), plan.Constraints{}).Sites(native.Arch, ops, r, env(t), nil)
	if err != nil || len(sites) != 1 || len(r.sizes) < 2 || r.sizes[0] != plan.FirstRoom || len(sites[0].Detour.Code) <= plan.FirstRoom {
		t.Errorf("%d sites, %v; asked for %v", len(sites), err, r.sizes)
	}
}
