package soak

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/arch"
)

// Round is one run of a program with probes, and what others say of it.
type Round struct {
	Stage    *Stage
	Seed     uint64
	Probes   int // asked for
	Armed    int
	Hits     uint64
	Records  uint64
	Lost     uint64
	Toggles  int
	Mode     string
	Tactics  map[string]int
	ByCall   int            // places that callgrind counts the same
	ByKernel int            // places that the kernel counts the same
	Unsteady int            // places that the kernel counts otherwise from run to run
	Seen     int            // places that the kernel counts the same once our signal handlers are in the program
	Left     map[string]int // places that are not compared, by reason
	Refused  map[string]int // places that could not be armed, by reason
	Bad      []string       // what is wrong
}

// Limits of what may be left out, in percent of the probes of a round, and the number that is
// allowed in any case.
const (
	refusedPercent = 15
	forcedPercent  = 60 // where a tactic is asked for that is not the best
	parkedPercent  = 1
	unsteadyAny    = 3
	seenAny        = 3
	parkedAny      = 3
	noUprobeAny    = 12
)

// mode is how a round arms its probes.
type mode struct {
	name   string
	tactic arch.Tactic
	late   bool
	toggle bool
	calls  bool
	few    bool // each hit costs microseconds
}

// modes are those that suit the program.
func (w *Work) modes() []mode {
	out := []mode{
		{name: "start"},
		{name: "toggle", toggle: true},
		{name: "middle", late: true},
	}
	if w.Referee == Callgrind {
		out = append(out, mode{name: "handlers", calls: true})
	}
	if !w.NoTraps && !w.Go {
		out = append(out, mode{name: "boost", tactic: arch.TacticBoost, late: true, few: true},
			mode{name: "step", tactic: arch.TacticStep, late: true, few: true})
	}
	return out
}

// Round runs the program with n probes as a seed says, and compares. An error is one of the
// machinery; what is wrong with the probes is in Bad.
func (s *Stage) Round(seed uint64, n int) (*Round, error) {
	s.asked = n
	if err := s.know(); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	ms := s.modes()
	m := ms[rng.IntN(len(ms))]
	p := s.plan(rng, m, n)
	r := &Round{Stage: s, Seed: seed, Probes: len(p.probes), Mode: m.name, Left: map[string]int{}}
	res, err := s.probed(p)
	for i := 1; err == nil && i < middleTries && res.missedMiddle(p) && res.out.differs(s.plain) == ""; i++ {
		res, err = s.probed(p)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.again(), err)
	}
	r.take(res)
	if !r.OK() {
		if res.out.differs(s.plain) != "" {
			r.least(p)
		}
		return r, nil
	}
	j := &judge{Round: r, plan: p, first: res}
	if err := j.all(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.again(), err)
	}
	r.bounds(p)
	return r, nil
}

// middleTries is how often a program without input is run, if it has ended before a probe was
// armed in its middle.
const middleTries = 5

// missedMiddle says whether the program was over before anything could be armed in its middle.
func (res *result) missedMiddle(p *plan) bool {
	return p.late && len(res.got) == 0
}

// plan chooses what a round does.
func (s *Stage) plan(rng *rand.Rand, m mode, n int) *plan {
	c := s.chooser(rng)
	p := &plan{tactic: m.tactic, late: m.late}
	if m.few {
		n /= 3
	}
	if s.Go { // no probes that the kernel holds: it waits long when they are taken out
		p.tactic = arch.TacticJump
	}
	rets := n / 8
	if m.tactic == arch.TacticStep {
		rets = 0
	}
	for _, b := range c.probes(n-rets, rets) {
		ran := s.refs[0][b.place]
		if m.few && ran > fewHits {
			continue
		}
		b.toggle = m.toggle && rng.IntN(2) == 0
		b.half = b.toggle && s.Referee == Callgrind && rng.IntN(2) == 0
		b.call = m.calls && !b.ret && ran < callHits && rng.IntN(3) == 0
		p.probes = append(p.probes, b)
	}
	return p
}

// The most hits of places where each takes a trap, or a handler in our process.
const (
	fewHits  = 20000
	callHits = 300
)

// take takes over what the run with probes has given.
func (r *Round) take(res *result) {
	r.Armed, r.Records, r.Lost, r.Toggles = len(res.got), res.records, res.lost, res.toggles
	r.Tactics, r.Refused = res.tactics, res.refused
	for _, n := range res.got {
		r.Hits += n
	}
	r.Bad = append(r.Bad, res.wrong...)
	r.output(res.out)
}

// output compares what the program wrote.
func (r *Round) output(o *outcome) {
	if d := o.differs(r.Stage.plain); d != "" {
		r.Bad = append(r.Bad, d)
	}
	if check := r.Stage.Check; check != nil {
		if err := check(r.Stage, o); err != nil {
			r.Bad = append(r.Bad, err.Error())
		}
	}
}

// bounds checks how much was left out.
func (r *Round) bounds(p *plan) {
	limit := refusedPercent
	if p.tactic != "" && p.tactic != arch.TacticJump {
		limit = forcedPercent
	}
	n := 0
	for _, m := range r.Refused {
		n += m
	}
	if n*100 > limit*r.Probes {
		r.Bad = append(r.Bad, fmt.Sprintf("%d of %d places were refused, more than %d %%: %v", n, r.Probes, limit, r.Refused))
	}
	for _, l := range []struct {
		why          string
		any, percent int
	}{{parked, parkedAny, parkedPercent}, {noUprobe, noUprobeAny, 0}} {
		if q := r.Left[l.why]; q > max(l.any, l.percent*r.Probes/100) {
			r.Bad = append(r.Bad, fmt.Sprintf("%s: %d of %d probes were not compared", l.why, q, r.Probes))
		}
	}
	if rest := r.Probes - r.Armed - n; rest > 0 {
		r.Left[tooLate] += rest
		if r.Armed == 0 || !p.late || r.Stage.Input != nil {
			r.Bad = append(r.Bad, fmt.Sprintf("of %d probes %d were armed and %d refused: the program ended too early", r.Probes, r.Armed, n))
		}
	}
	all := r.ByCall + r.ByKernel + r.Unsteady
	if r.Unsteady > max(unsteadyAny, r.Stage.Work.Unsteady*all/100) {
		r.Bad = append(r.Bad, fmt.Sprintf("%d of %d places are counted otherwise from run to run", r.Unsteady, all))
	}
	if r.Seen > seenAny {
		r.Bad = append(r.Bad, fmt.Sprintf("%d places are counted otherwise where our signal handlers are in the program", r.Seen))
	}
}

// OK says whether nothing was wrong.
func (r *Round) OK() bool { return len(r.Bad) == 0 }

// again is what repeats the round.
func (r *Round) again() string {
	return fmt.Sprintf("-program %s -seed %#x -rounds 1 -probes %d -size %d", r.Stage.Name, r.Seed, r.Stage.asked, r.Stage.size)
}

// String is the round's line.
func (r *Round) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s seed=%#016x mode=%-8s probes=%d armed=%d tactics=%s hits=%d records=%d lost=%d", r.Stage.Name, r.Seed, r.Mode,
		r.Probes, r.Armed, short(r.Tactics), r.Hits, r.Records, r.Lost)
	if r.Toggles > 0 {
		fmt.Fprintf(&b, " toggles=%d", r.Toggles)
	}
	fmt.Fprintf(&b, " callgrind=%d kernel=%d seen=%d unsteady=%d left-out=%s refused=%s", r.ByCall, r.ByKernel, r.Seen, r.Unsteady, short(r.Left), short(r.Refused))
	if r.OK() {
		return b.String() + " ok"
	}
	fmt.Fprintf(&b, " WRONG\n\tagain: go run ./internal/soak/cmd %s", r.again())
	for _, bad := range r.Bad {
		b.WriteString("\n\t" + bad)
	}
	return b.String()
}

func short(m map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s:%d", k, m[k]))
	}
	return "[" + strings.Join(out, ", ") + "]"
}
