package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/process"
)

// executableBuffer is the size of the ring of a process for each CPU, in bytes, if no flag says another: there may be thousands.
const executableBuffer = 64 << 10

// executableEvents bounds the probes in each process.
const executableEvents = 1 << 16

func openExecutable(t *tracing, cmd []string) *tracedExecutable {
	return &tracedExecutable{t: t, cmd: cmd, every: &t.f.every, told: tellOnce{most: maxReasons, waits: true}, skipped: tellOnce{most: maxSkips}, exceeded: tellOnce{most: maxExceeded}}
}

// noNames is for what no process is known of.
type noNames struct{}

func (noNames) Symbol(uint64) (fetch.Sym, bool) { return fetch.Sym{}, false }
func (noNames) Comm(int) string                 { return "<...>" }

func (x *tracedExecutable) Names() hit.Namer { return noNames{} }

// Add probes the processes that run, and those that come from now on. If none of those that run can be probed it fails.
func (x *tracedExecutable) Add(defs []*event.Def, o *kprobes.AddOptions) (err error) {
	x.defs, x.add = defs, *o
	x.add.Skip = func(name string, why error) {
		x.skipped.once(name, func() { o.Skip(name, why) })
	}
	all := executables.Options{File: x.every.file, Only: x.every.only, Arm: x.arm, Refused: x.refused, Replaced: x.replaced}
	if len(x.cmd) > 0 {
		all.Command = &process.Command{Path: x.cmd[0], Args: x.cmd[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	}
	set, watchErr, err := executables.Open(all)
	if err != nil {
		return err
	}
	x.set = set
	n := set.Counts()
	if n.Refused > 0 && n.Probed() == 0 {
		return x.told.firstError()
	}
	x.told.now()
	if x.t.f.quiet {
		return nil
	}
	if n.Probed() == 0 {
		x.absent()
	}
	if watchErr != nil {
		x.say("%s: new processes of %s are probed some time after they have begun, and short ones are not seen", executables.WhyUnwatched(watchErr), x.every.file.Path())
	}
	return nil
}

// absent tells of functions that the file does not have, while there is no process that could tell: they may be mistyped.
func (x *tracedExecutable) absent() {
	im, file, err := x.image()
	if err != nil {
		x.say("%v", err)
		return
	}
	defer file.Close()
	for _, d := range x.defs {
		if p := &d.Place; d.Kind != event.Watch && p.Kind == event.PlaceSymbol && !p.Glob && p.Module == "" {
			if _, err := im.Lookup(p.Symbol); err != nil {
				x.say("%s: %v: the shared objects of each process are searched", d.Text, err)
			}
		}
	}
}

// image is the file's. It is of use until the file is closed.
func (x *tracedExecutable) image() (*symbol.Image, *os.File, error) {
	file, err := os.Open(x.every.file.Path())
	if err != nil {
		return nil, nil, err
	}
	st, err := file.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	im, err := symbol.Open(file, st.Size(), x.every.file.Path(), nil)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return im, file, nil
}

// arm probes one process.
func (x *tracedExecutable) arm(p *process.Proc, stopped *process.Stopped) (executables.Member, error) {
	o := process.TargetOptions{Buffer: cmp.Or(x.t.f.buffer, executableBuffer), Events: executableEvents, Text: textModes[x.t.f.text], Stopped: stopped, Files: &x.files}
	if x.t.f.counters && x.t.f.buffer == 0 {
		o.Buffer = ring.MinData
	}
	s, err := newSession(p, &o)
	if err != nil {
		if stopped != nil {
			err = errors.Join(err, stopped.Release())
		}
		return nil, err
	}
	m := &executableMember{x: x, p: tracedProcess{probed: probed{core: s.core}, s: s}, comm: s.names.Comm(p.PID())}
	add := x.add
	addAll := func(defs []*event.Def) error { return m.p.Add(defs, &add) }
	if x.t.eachAdd != nil {
		err = x.t.eachAdd(m, addAll)
	} else {
		err = addAll(x.defs)
	}
	if run := m.p.Run(); err == nil {
		err = run
	}
	if err != nil {
		return nil, errors.Join(err, m.p.Leave(nil), m.p.s.target.Discard(), m.p.Close())
	}
	x.first.Do(func() { x.t.tellOf(&m.p) })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.members = append(x.members, m)
	return m, nil
}

// replaced tells that another file has taken the executable's place.
func (x *tracedExecutable) replaced() {
	if !x.t.f.quiet {
		x.say("%s is another file now: its processes are probed too", x.every.file.Path())
	}
}

// refused tells of a process that can not be probed, and of execs that are not seen any more (pid 0).
func (x *tracedExecutable) refused(pid int, err error) {
	if pid != 0 {
		err = fmt.Errorf("process %d has no probes: %w", pid, err)
	}
	x.tell(pid, err)
}

// tell tells what goes wrong in a process: of each thing once.
func (x *tracedExecutable) tell(pid int, err error) {
	kind := strings.ReplaceAll(err.Error(), fmt.Sprintf("process %d", pid), "process PID")
	x.told.failed(kind, err, func() {
		if !x.t.f.quiet {
			x.say("%v", err)
		}
	})
}

func (x *tracedExecutable) say(format string, args ...any) {
	fmt.Fprintf(x.t.f.con.stderr, "kprobe: "+format+"\n", args...)
}

// live are the members now.
func (x *tracedExecutable) live() []*executableMember {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.members)
}

// maxExceeded bounds the events of processes that are told to have been disabled by their budgets.
const maxExceeded = 20

// Exceeded tells of the events of processes that their budgets have disabled: each process has budgets of its own.
func (x *tracedExecutable) Exceeded(tell func(name string, why error)) {
	if x.add.Budget == (kprobes.Budget{}) {
		return
	}
	for _, m := range x.live() {
		m.exceeded(func(name string, why error) {
			name = fmt.Sprintf("%s in process %d", name, m.p.s.proc.PID())
			x.exceeded.once(name, func() { tell(name, why) })
		})
	}
}

// Run lets the command begin. Each process runs as soon as it has its probes.
func (x *tracedExecutable) Run() error {
	x.set.Begin()
	return nil
}

// pollShare is the part of the time that reading may take where there is little to read in many rings: one in so many.
const pollShare = 5

// Poll reads all rings, and hands over their hits in the order of their times, those of processes that have ended too.
func (x *tracedExecutable) Poll(f func(*hit.Hit)) int {
	begun := time.Now()
	if begun.Before(x.nextPoll) {
		return 0
	}
	pending := false
	for _, m := range x.live() {
		pending = m.poll() || pending
	}
	x.pending.Store(pending)
	n := x.give(f)
	if now := time.Now(); n == 0 {
		x.nextPoll = now.Add((pollShare - 1) * now.Sub(begun))
	}
	return n
}

// give hands over what there is, and gives the number. Behind the hits of processes that have been left it ends these.
func (x *tracedExecutable) give(f func(*hit.Hit)) int {
	n, left := x.hits.give(f)
	if x.t.eachLeft != nil {
		for _, m := range left {
			x.t.hits.then(func() { x.t.eachLeft(m) })
		}
	}
	return n
}

func (x *tracedExecutable) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	for _, m := range x.live() {
		m.losses(all, f)
	}
}

func (x *tracedExecutable) Pending() bool { return x.pending.Load() }

// syncTime bounds how long Sync looks at processes where nothing waits. The next call goes on with the next ones.
const syncTime = 5 * time.Millisecond

// Sync follows what processes map: of those at once that wait for it.
func (x *tracedExecutable) Sync() (ended bool, err error) {
	x.pending.Store(false)
	all := x.live()
	for _, m := range all {
		if m.waits() {
			m.sync()
		}
	}
	end := time.Now().Add(syncTime)
	for range all {
		all[x.next%len(all)].sync()
		if x.next++; time.Now().After(end) {
			break
		}
	}
	return false, nil
}

func (x *tracedExecutable) Exited() <-chan struct{} { return x.set.Ended() }

// Leave takes all probes out of all processes.
func (x *tracedExecutable) Leave(f func(*hit.Hit)) error {
	if x.set != nil {
		x.set.Close()
	}
	if f != nil {
		x.give(f)
	}
	return x.sums.err()
}

func (x *tracedExecutable) Status() error {
	if len(x.cmd) == 0 {
		return nil
	}
	st, err := x.set.Status()
	switch {
	case err != nil:
		return err
	case st.Signaled():
		return statusError(128 + int(st.Signal()))
	case st.ExitStatus() != 0:
		return statusError(st.ExitStatus())
	}
	return nil
}

func (x *tracedExecutable) Close() error { return nil }

// What is so in every process is told of the first one, when it is armed.
func (x *tracedExecutable) Slower(func(name, tactic string, why error)) {}
func (x *tracedExecutable) Stubs(func(name string, why error))          {}
func (x *tracedExecutable) LeftOut(func(name, param, why string))       {}
func (x *tracedExecutable) Waiting(func(name string, why error))        {}
func (x *tracedExecutable) Inlined(func(name, function, place string))  {}
