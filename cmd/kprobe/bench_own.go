package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/benchprobes"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/workload"
)

// What is measured in the own process is measured by a process of its own: the command starts
// itself with a hidden verb, which probes itself and writes what it finds, an object a line.

const ownVerb = "__own"

// ownLine is a line of that verb: one of the two.
type ownLine struct {
	Cell   *cell   `json:"cell,omitempty"`
	Figure *figure `json:"figure,omitempty"`
}

// newOwn is the verb by which the command measures probes of its own process.
func newOwn() *cobra.Command {
	var quick bool
	c := &cobra.Command{
		Use:    ownVerb,
		Hidden: true,
		Args:   noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilEnd(c.Context())
			defer stop()
			o := &own{ctx: ctx, enc: json.NewEncoder(os.Stdout), rounds: fullRounds, batches: fullArmings, pattern: "*"}
			if quick {
				o.rounds, o.batches, o.pattern = fewRounds, 1, quickPattern
			}
			return o.all()
		},
	}
	c.Flags().BoolVar(&quick, "quick", false, "few and short rounds")
	return c
}

// ownRow is a way to probe the own process.
type ownRow struct {
	name, what string
	tactics    []arch.Tactic
	kprobe     bool
	jprobe     bool
	kretprobe  bool
	deep       bool // the handler may sleep, in a function that checks its stack
}

var ownRows = []ownRow{
	{"k", "kprobe", paperTactics, true, false, false, false},
	{"j", "jprobe", paperTactics, false, true, false, false},
	{"r", "kretprobe", paperTactics, false, false, true, false},
	{"kr", "kprobe and kretprobe", paperTactics, true, false, true, false},
	{"jr", "jprobe and kretprobe", paperTactics, false, true, true, false},
	{rowSleepable, "kprobe, handler may sleep", []arch.Tactic{arch.TacticJump}, true, false, false, true},
}

// own is a run of the verb.
type own struct {
	ctx     context.Context
	enc     *json.Encoder
	rounds  int
	batches int // rounds of arming everything
	pattern string
}

func (o *own) all() error {
	core, err := kprobes.Self()
	var errs []error
	for i := range ownRows {
		for _, t := range ownRows[i].tactics {
			if o.ctx.Err() != nil {
				return errInterrupted
			}
			c := ownRows[i].cell(t)
			if err != nil {
				c.Why = escapedError(err)
			} else if err := o.measure(core, &ownRows[i], &c); err != nil {
				c.Failed = escapedError(err)
				errs = append(errs, err)
			}
			errs = append(errs, o.enc.Encode(ownLine{Cell: &c}))
		}
	}
	if err == nil {
		errs = append(errs, engine.Of(core).ForceTactic(""))
	}
	for _, f := range o.batch(err) {
		errs = append(errs, o.enc.Encode(ownLine{Figure: &f}), f.error())
	}
	return errors.Join(errs...)
}

func (r *ownRow) cell(t arch.Tactic) cell {
	return cell{Row: r.name, What: r.what, Class: "go", Where: whereSelf, Threads: 1, Tactic: string(t)}
}

// Calls of a round in the own process: few where each costs microseconds.
const (
	ownCalls = batches * 300
	ownSlow  = batches * 15
)

// measure fills a cell. What this machine does not offer is no error: the cell says why.
func (o *own) measure(core *kprobes.Core, r *ownRow, c *cell) error {
	if err := engine.Of(core).ForceTactic(arch.Tactic(c.Tactic)); err != nil {
		return err
	}
	p, err := armOwn(core, r)
	defer p.disarm()
	if err != nil {
		c.Why = escapedError(err)
		return nil
	}
	calls, plain, probed := ownCalls, workload.LoopPlainLeaf, workload.LoopLeaf
	if c.Tactic != string(arch.TacticJump) || r.deep {
		calls = ownSlow
	}
	if r.deep {
		plain, probed = workload.LoopPlainDeep, workload.LoopDeep
	}
	var rs []round
	for i := 0; i <= o.rounds; i++ {
		if o.ctx.Err() != nil {
			return errInterrupted
		}
		var x round
		x.plain, _ = workload.PerCall(plain, calls)
		ns, made := workload.PerCall(probed, calls)
		x.probed = ns
		c.Want += made * p.perCall()
		if i > 0 {
			rs = append(rs, x)
		}
	}
	c.sum(rs)
	return p.check(c)
}

// ownProbes are a row's probes.
type ownProbes struct {
	core *kprobes.Core
	row  *ownRow
	k    *kprobes.Kprobe
	j    *kprobes.Jprobe
	r    *kprobes.Kretprobe
}

// armOwn arms a row's probes. Those that it gives are to be disarmed even after an error.
func armOwn(core *kprobes.Core, r *ownRow) (p *ownProbes, err error) {
	for range armTries {
		p = &ownProbes{core: core, row: r}
		if err = p.arm(); !errors.Is(err, unix.EBUSY) {
			break
		}
		p.disarm()
	}
	return p, err
}

func (p *ownProbes) arm() error {
	kp := kprobes.Kprobe{SymbolName: workload.OwnLeaf}
	if p.row.deep {
		kp = kprobes.Kprobe{SymbolName: workload.OwnDeep, Flags: kprobes.FlagSleepable}
	}
	var err error
	if p.row.kprobe {
		p.k = &kprobes.Kprobe{SymbolName: kp.SymbolName, Flags: kp.Flags, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
		err = p.core.RegisterKprobe(p.k)
	}
	if p.row.jprobe && err == nil {
		p.j = &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: kp.SymbolName}, Entry: func(_, _ int) int { return 0 }}
		err = p.core.RegisterJprobe(p.j)
	}
	if p.row.kretprobe && err == nil {
		p.r = &kprobes.Kretprobe{
			Kp: kprobes.Kprobe{SymbolName: kp.SymbolName}, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 },
		}
		err = p.core.RegisterKretprobe(p.r)
	}
	return err
}

// perCall is how many hits a call makes.
func (p *ownProbes) perCall() uint64 { return uint64(len(p.states())) }

func (p *ownProbes) states() (out []kprobes.State) {
	if p.k != nil {
		out = append(out, p.k.State())
	}
	if p.j != nil {
		out = append(out, p.j.State())
	}
	if p.r != nil {
		out = append(out, p.r.State())
	}
	return out
}

// check compares the probes' account with the calls.
func (p *ownProbes) check(c *cell) error {
	want := arch.Tactic(c.Tactic)
	for _, s := range p.states() {
		c.Hits += s.Hits
		c.Lost += s.Misses.Total()
		if s.Tactic != want {
			return fmt.Errorf("%s: armed by %s, not by %s", c.Row, s.Tactic, want)
		}
	}
	if c.Hits != c.Want {
		return fmt.Errorf("%s in the own process by %s: %d, not %d: %w", c.Row, c.Tactic, c.Hits, c.Want, errCount)
	}
	return nil
}

func (p *ownProbes) disarm() {
	if p.k != nil {
		p.core.UnregisterKprobe(p.k)
	}
	if p.j != nil {
		p.core.UnregisterJprobe(p.j)
	}
	if p.r != nil {
		p.core.UnregisterKretprobe(p.r)
	}
}

// batch arms all functions of the own process at once, first alone, then beside a thread that
// sees how long it was stopped.
func (o *own) batch(why error) []figure {
	fs := batchFigures(whereSelf, barBatchSelf)
	if why != nil {
		return unavailable(fs, why)
	}
	return armings(o.ctx, fs, o.batches, func(armed func() error) (benchprobes.Arming, error) {
		return benchprobes.Self(o.pattern, armed)
	}, workload.StartGauge)
}

// own measures in the own process, by a subprocess, and takes over what it finds.
func (b *bench) own() error {
	if b.ctx.Err() != nil {
		return nil // told once, by all
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{ownVerb}
	if b.quick {
		args = append(args, "--quick")
	}
	cmd := exec.CommandContext(b.ctx, exe, args...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = b.takeOver(json.NewDecoder(out))
	if err2 := cmd.Wait(); err2 != nil {
		err = errors.Join(err, fmt.Errorf("measuring in the own process: %w", err2))
	}
	return err
}

func (b *bench) takeOver(dec *json.Decoder) error {
	for {
		var l ownLine
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("measuring in the own process: %w", err)
		}
		if l.Cell != nil {
			b.cells = append(b.cells, *l.Cell)
			b.out.cell(*l.Cell)
		}
		if l.Figure != nil {
			b.add(*l.Figure)
		}
	}
}
