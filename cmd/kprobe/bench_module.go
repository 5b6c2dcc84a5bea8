package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/internal/workload"
)

// module gives them. The error says why there is no module.
func (b *bench) module() (*benchModules, error) {
	m := &b.modules
	if m.table == nil {
		if m.table, m.err = modules.New(engine.Of(b.s.core), 0); m.err == nil {
			m.object, m.err = benchObject()
		}
	}
	return m, m.err
}

// benchObject compiles the module.
func benchObject() (_ *kmod.Object, err error) {
	if _, err := exec.LookPath(kmod.Compiler()[0]); err != nil {
		return nil, fmt.Errorf("%w: %w", cbuild.ErrNoCompiler, err)
	}
	dir, err := os.MkdirTemp("", "kprobe-bench-module-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	text, err := workload.Sources.ReadFile(workload.Module)
	if err != nil {
		return nil, err
	}
	source := filepath.Join(dir, filepath.Base(workload.Module))
	if err := os.WriteFile(source, text, 0o600); err != nil {
		return nil, err
	}
	path, err := compileModule(dir, source)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return kmod.Parse(file)
}

// moduleProber probes by a module of C, whose handlers run in the probed program.
type moduleProber struct {
	b     *bench
	row   *row
	table *modules.Table
	name  string // "": it is not loaded

	lines     uint64 // that its handler has written
	optimized int    // what it has told of its probe at its start; -1: nothing yet
	told      bool   // it has told at its end
	entries   uint64 // of its end: how often its handlers were called, and how often not
	returns   uint64
	missed    uint64
}

func (p *moduleProber) arm(cl class) error {
	m, err := p.b.module()
	if err != nil {
		return err
	}
	at, err := p.b.place(cl.function)
	if err != nil {
		return err
	}
	mode := 0
	switch {
	case p.row.ret:
		mode = 2
	case !p.row.count:
		mode = 1
	}
	p.b.serial++
	p.optimized, p.table = -1, m.table
	name := fmt.Sprintf("bench%d", p.b.serial)
	if err := m.table.Insert(name, m.object, []kmod.Param{{Name: "addr", Value: fmt.Sprint(at.Addr)}, {Name: "mode", Value: fmt.Sprint(mode)}}, nil); err != nil {
		return err
	}
	p.name = name
	if p.read(func() bool { return p.optimized >= 0 }); p.optimized != 1 {
		return errors.New("not armed by a jump")
	}
	return nil
}

// read reads what the module writes until something is so, but for no longer than drainTime.
func (p *moduleProber) read(done func() bool) {
	for end := time.Now().Add(drainTime); time.Now().Before(end) && !done(); time.Sleep(time.Millisecond / 2) {
		p.b.s.core.Poll(p.take)
	}
}

// take takes a line of the module.
func (p *moduleProber) take(h *hit.Hit) {
	text := p.table.Log().Text(h)
	var args [4]uint64
	if n, _ := fmt.Sscanf(text, "a=%x b=%x c=%x d=%x", &args[0], &args[1], &args[2], &args[3]); n == len(args) {
		p.lines++
	}
	_, _ = fmt.Sscanf(text, "bench optimized %d", &p.optimized)
	if n, _ := fmt.Sscanf(text, "bench entries %d returns %d missed %d", &p.entries, &p.returns, &p.missed); n == 3 {
		p.told = true
	}
}

func (p *moduleProber) program(function string) (*workload.Program, string) {
	return p.b.probed, function
}

func (p *moduleProber) drain(hits uint64) {
	if !p.row.count {
		p.read(func() bool { return p.lines >= hits })
	}
}

func (p *moduleProber) tactic() arch.Tactic { return arch.TacticJump }

// counts ends the module, which tells then.
func (p *moduleProber) counts() (hits, lost uint64, err error) {
	if err := p.disarm(); err != nil {
		return 0, 0, err
	}
	if p.read(func() bool { return p.told }); !p.told {
		return 0, 0, errors.New("the module's end has written nothing")
	}
	return p.entries + p.returns + p.lines, p.missed, nil
}

func (p *moduleProber) disarm() error {
	if p.name == "" {
		return nil
	}
	name := p.name
	p.name = ""
	return p.table.Remove(name)
}
