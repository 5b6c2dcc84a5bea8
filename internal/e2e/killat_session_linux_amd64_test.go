package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/killat"
	"kprobes.dev/kprobes/target/process"
)

// sessionProcess names a process on which the test binary does all that a tracer can do, from
// a process of its own.
const sessionProcess = "KPROBES_E2E_SESSION"

func init() {
	pid, err := strconv.Atoi(os.Getenv(sessionProcess))
	if err != nil {
		return
	}
	s := &script{}
	if err := s.run(pid); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

// script is a session with the program leaf: each phase of the life of its probes once.
type script struct {
	core     *kprobes.Core
	proc     *process.Proc
	evs      []*kprobes.Event
	pre      *kprobes.Kprobe
	post     *kprobes.Kprobe
	ret      *kprobes.Kretprobe
	neighbor []*kprobes.Event
}

// step is a part of the session, for the injector a phase: the phase that the listing knows and
// what is done.
type step struct {
	phase string
	do    func() error
}

func (s *script) run(pid int) error {
	for _, p := range s.steps(pid) {
		killat.Mark(p.phase)
		if err := p.do(); err != nil {
			return fmt.Errorf("%s: %w", p.phase, err)
		}
	}
	return nil
}

// steps are the session: attach; probes of all kinds and tactics; jumps turned into breakpoints
// and back for each of the reasons that there are; probes taken out by the knob and for ever;
// detach.
func (s *script) steps(pid int) []step {
	return []step{
		{"attach", func() error { return s.attach(pid) }},
		{"arm events", s.armEvents},
		{"arm step", s.armStep},
		{"arm handler", s.armHandler},
		{"arm return handler", s.armReturn},
		{"optimise not: knob", func() error { return s.core.SetOptimization(false) }},
		{"optimise: knob", func() error { return s.core.SetOptimization(true) }},
		{"optimise not: post handler", func() error { return s.core.RegisterKprobe(s.post) }},
		{"optimise: post handler gone", func() error { s.core.UnregisterKprobe(s.post); return nil }},
		{"optimise: second probe", s.second},
		{"optimise: second probe gone", func() error { return s.core.Remove(s.neighbor) }},
		{"disarm: disable", func() error { return s.core.DisableKprobe(s.pre) }},
		{"arm: enable", func() error { return s.core.EnableKprobe(s.pre) }},
		{"disarm: all", func() error { return s.core.SetEnabled(false) }},
		{"arm: all", func() error { return s.core.SetEnabled(true) }},
		{"disarm: handlers", func() error { s.core.UnregisterKprobe(s.pre); s.core.UnregisterKretprobe(s.ret); return nil }},
		{"disarm: events", func() error { return s.core.Remove(s.evs) }},
		{"detach", func() error { return errors.Join(s.core.Close(nil), s.proc.Close()) }},
	}
}

// attach maps everything into the process that probes need.
func (s *script) attach(pid int) (err error) {
	if s.proc, err = process.Open(pid); err != nil {
		return err
	}
	t, err := process.Attach(s.proc, &process.TargetOptions{Buffer: 64 << 10, HandlerWait: 200 * time.Microsecond})
	if err != nil {
		return err
	}
	if s.core, err = kprobes.Open(t, nil); err != nil {
		return err
	}
	return t.Prepare()
}

func (s *script) add(tactic arch.Tactic, texts ...string) ([]*kprobes.Event, error) {
	return s.addWith(func(*event.Def) {}, tactic, texts...)
}

// addWith is add for definitions that more is asked of.
func (s *script) addWith(ask func(*event.Def), tactic arch.Tactic, texts ...string) ([]*kprobes.Event, error) {
	var defs []*event.Def
	for _, text := range texts {
		d, err := event.Parse(text)
		if err != nil {
			return nil, err
		}
		ask(d)
		defs = append(defs, d)
	}
	return s.core.Add(defs, &kprobes.AddOptions{Tactic: tactic})
}

// armEvents makes records, of a place and of returns, with loads that may fault, stacks, and a filter.
func (s *script) armEvents() (err error) {
	ask := func(d *event.Def) {
		d.Stack = 8
		if d.Name == "a" {
			d.Filter = "top != 0"
		}
	}
	counts, err := s.armHistograms()
	if err != nil {
		return err
	}
	defer func() { s.evs = append(s.evs, counts...) }()
	s.evs, err = s.addWith(ask, "", "p:a leaf $comm top=+0(%sp):u64", "r:b calling +0(%sp):string $retval", "r:c holding $arg1")
	return err
}

// armHistograms makes histograms: of one event, and of the time between two.
func (s *script) armHistograms() ([]*kprobes.Event, error) {
	took, err := event.ParseSynthetic("s:took u64 ns")
	if err != nil {
		return nil, err
	}
	hists := map[string]*event.Hist{}
	for name, text := range map[string]string{
		"h": "keys=a,common_pid:vals=b", "from": "keys=common_pid:ts0=common_timestamp", "took": "keys=ns.log2",
		"to": "keys=common_pid:ns=common_timestamp-$ts0:onmatch(kprobes.from).trace(took,$ns)",
	} {
		if hists[name], err = event.ParseHist(text); err != nil {
			return nil, err
		}
	}
	took.Hist, hists["to"].Actions[0].Traced = hists["took"], took
	evs, err := s.addWith(func(d *event.Def) { d.Hist = hists[d.Name] }, "", "p:h leaf a=$arg1 b=+0(%sp):u64", "p:from calling", "p:to leaf")
	if err == nil {
		_, err = s.core.Synthetic(took)
	}
	return evs, err
}

// armStep makes a breakpoint whose instruction is stepped.
func (s *script) armStep() error {
	evs, err := s.add(arch.TacticStep, "p:d main")
	s.evs = append(s.evs, evs...)
	return err
}

func (s *script) armHandler() error {
	s.pre = &kprobes.Kprobe{SymbolName: "quiet", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	s.post = &kprobes.Kprobe{SymbolName: "calling", PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}}
	return s.core.RegisterKprobe(s.pre)
}

func (s *script) armReturn() error {
	s.ret = &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "holding"}, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 },
	}
	return s.core.RegisterKretprobe(s.ret)
}

// second makes a probe at the second instruction of a function, which is in the first one's
// region.
func (s *script) second() (err error) {
	s.neighbor, err = s.add("", "p:e leaf+8")
	return err
}
