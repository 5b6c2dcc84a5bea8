package main

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/workload"
)

func (b *bench) prober(r *row) prober {
	switch r.means {
	case meansUprobe:
		return &kernelProber{b: b, row: r}
	case meansHandler:
		return &handlerProber{b: b}
	case meansModule:
		return &moduleProber{b: b, row: r}
	case meansTracepoint:
		return &handProber{b: b}
	case meansQuestion:
		return &askProber{b: b}
	default:
		return &ownProber{b: b, row: r}
	}
}

// place finds a function of the workload.
func (b *bench) place(function string) (symbol.Resolved, error) {
	return b.s.target.Space().Resolve(symbol.Place{Sym: b.symbol(function)})
}

// ownProber probes by the engine.
type ownProber struct {
	b   *bench
	row *row
	evs []*kprobes.Event
}

func (p *ownProber) arm(cl class) error {
	at, err := p.b.place(cl.function)
	if err != nil {
		return err
	}
	if p.row.args != "" && p.b.goProgram && !p.b.s.target.FaultsCaught(at.Addr) {
		return errAsks
	}
	defs, err := p.definitions(at.Vaddr)
	if err != nil {
		return err
	}
	p.evs, err = p.b.s.core.Add(defs, &kprobes.AddOptions{Count: p.row.count, Tactic: p.row.tactic})
	if err != nil {
		return err
	}
	for _, e := range p.evs {
		if t, _ := e.Form(); t != p.row.tactic {
			return fmt.Errorf("armed by %s, not by %s", t, p.row.tactic)
		}
	}
	return nil
}

// definitions are the row's probes on the function at a link-time address.
func (p *ownProber) definitions(addr uint64) ([]*event.Def, error) {
	var texts []string
	p.b.serial++
	if p.row.entry {
		texts = append(texts, fmt.Sprintf("p:bench/entry%d 0x%x", p.b.serial, addr)+p.args(cmp.Or(p.row.args, fetchArgs)))
	}
	if p.row.ret {
		texts = append(texts, fmt.Sprintf("r:bench/return%d 0x%x", p.b.serial, addr)+p.args(fetchReturn))
	}
	var defs []*event.Def
	for _, t := range texts {
		d, err := event.Parse(t)
		if err != nil {
			return nil, err
		}
		d.Filter = p.row.filter
		defs = append(defs, d)
	}
	return defs, nil
}

func (p *ownProber) args(args string) string {
	if p.row.count {
		return ""
	}
	return " " + args
}

func (p *ownProber) program(function string) (*workload.Program, string) { return p.b.probed, function }

func (p *ownProber) drain(hits uint64) {
	for end := time.Now().Add(drainTime); time.Now().Before(end); time.Sleep(time.Millisecond / 2) {
		p.b.s.core.Poll(func(*hit.Hit) {})
		if n, _, _ := p.counts(); n >= hits {
			return
		}
	}
}

func (p *ownProber) tactic() arch.Tactic {
	t, _ := p.evs[0].Form()
	return t
}

func (p *ownProber) counts() (hits, lost uint64, err error) {
	for _, e := range p.evs {
		n := p.b.s.core.Counts(e)
		hits += n.Hits
		lost += n.Lost + n.Missed
	}
	return hits, lost, nil
}

func (p *ownProber) disarm() error { return p.b.s.core.Remove(p.evs) }

// handlerProber calls a handler in Go, which is here in the tracer, while the thread that hit
// waits.
type handlerProber struct {
	b *bench
	k *kprobes.Kprobe
}

func (p *handlerProber) arm(cl class) error {
	at, err := p.b.place(cl.function)
	if err != nil {
		return err
	}
	p.k = &kprobes.Kprobe{Addr: at.Addr, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	return p.b.s.core.RegisterKprobe(p.k)
}

func (p *handlerProber) program(function string) (*workload.Program, string) {
	return p.b.probed, function
}

func (p *handlerProber) drain(uint64) {}

func (p *handlerProber) tactic() arch.Tactic { return p.k.State().Tactic }

func (p *handlerProber) counts() (hits, lost uint64, err error) {
	s := p.k.State()
	return s.Hits, s.Misses.Total(), nil
}

func (p *handlerProber) disarm() error {
	if p.k != nil {
		p.b.s.core.UnregisterKprobe(p.k)
	}
	return nil
}

// kernelProber probes by the kernel's uprobes, in a copy of the program.
type kernelProber struct {
	b      *bench
	row    *row
	probes []*kuprobe.Probe
}

func (p *kernelProber) arm(cl class) error {
	if err := p.refused(); err != nil {
		return err
	}
	at, err := p.b.place(cl.function)
	if err != nil {
		return err
	}
	off, ok := at.Module.Image.FileOff(at.Vaddr)
	if !ok {
		return fmt.Errorf("address 0x%x is not in the program's file", at.Vaddr)
	}
	for _, ret := range []bool{false, true} {
		if ret && !p.row.ret || !ret && !p.row.entry {
			continue
		}
		pr, err := p.open(kuprobe.Place{Path: p.b.copyPath, Offset: off, Return: ret})
		if err != nil {
			return err
		}
		p.probes = append(p.probes, pr)
	}
	return nil
}

// refused says why the kernel's probe is not to be had, or not to be risked.
func (p *kernelProber) refused() error {
	if p.row.ret && p.b.goProgram {
		return errors.New("uretprobes replace return addresses, which Go's runtime does not survive")
	}
	if p.b.noCopy != nil {
		return p.b.noCopy
	}
	return nil
}

func (p *kernelProber) open(pl kuprobe.Place) (*kuprobe.Probe, error) {
	if p.row.count {
		return pl.Open()
	}
	args := fetchArgs
	if pl.Return {
		args = fetchReturn
	}
	return kuprobe.Tracefs{Place: pl, Args: args, Record: true}.Open()
}

func (p *kernelProber) program(function string) (*workload.Program, string) {
	return p.b.copied, function
}

func (p *kernelProber) drain(uint64) {} // its ring overwrites the oldest records

func (p *kernelProber) tactic() arch.Tactic { return arch.TacticUprobe }

func (p *kernelProber) counts() (hits, lost uint64, err error) {
	for _, pr := range p.probes {
		n, err := pr.Count()
		if err != nil {
			return 0, 0, err
		}
		hits += n
	}
	return hits, 0, nil
}

func (p *kernelProber) disarm() error {
	var errs []error
	for _, pr := range p.probes {
		errs = append(errs, pr.Close())
	}
	return errors.Join(errs...)
}

// handProber is the tracepoint that the unprobed program holds.
type handProber struct {
	b      *bench
	before uint64
}

// traced is the function that holds the tracepoint.
const traced = "bench_traced"

func (p *handProber) arm(class) (err error) {
	p.before, err = p.b.plain.Written()
	return err
}

func (p *handProber) program(string) (*workload.Program, string) { return p.b.plain, traced }

func (p *handProber) drain(uint64) {}

func (p *handProber) tactic() arch.Tactic { return "" }

func (p *handProber) counts() (hits, lost uint64, err error) {
	n, err := p.b.plain.Written()
	return n - p.before, 0, err
}

func (p *handProber) disarm() error { return nil }

// askProber makes the system call in the unprobed program.
type askProber struct {
	b    *bench
	made uint64
}

func (p *askProber) arm(class) error {
	if p.b.goProgram {
		return errors.New("records of Go programs without C ask nothing")
	}
	return nil
}

func (p *askProber) program(string) (*workload.Program, string) { return p.b.plain, workload.Asked }

// drain takes note of the calls: each makes one question.
func (p *askProber) drain(calls uint64) { p.made = calls }

func (p *askProber) tactic() arch.Tactic { return "" }

func (p *askProber) counts() (hits, lost uint64, err error) { return p.made, 0, nil }

func (p *askProber) disarm() error { return nil }

// warm lets every CPU write its shards once round, those of records with strings too, so that no later round meets a
// page that is touched for the first time.
func (b *bench) warm() error {
	if err := b.warmBy(findRow(rowRecord), b.room, recordBytes); err != nil {
		return err
	}
	err := b.warmBy(findRow(rowString), b.locked, stringBytes)
	if errors.Is(err, errAsks) {
		return nil // there are no rows of such records
	}
	return err
}

// warmBy makes records of a row, of so many bytes at least, n in a round.
func (b *bench) warmBy(r *row, n, bytes uint64) (err error) {
	p := b.prober(r)
	defer func() { err = errors.Join(err, p.disarm()) }()
	if err := p.arm(classes[0]); err != nil {
		return err
	}
	laps := ringBytes/(n*bytes) + 1
	var hits uint64
	for range laps {
		r, err := b.probed.Run(classes[0].function, n, runtime.NumCPU())
		if err != nil {
			return err
		}
		hits += r.Calls
		p.drain(hits)
	}
	return nil
}
