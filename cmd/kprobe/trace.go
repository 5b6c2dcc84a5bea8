package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
)

func newTrace(con *console) *cobra.Command {
	f := traceFlags{con: con}
	c := &cobra.Command{
		Use:   "trace (-p PID | -x FILE | -k | --guest SPEC | -- CMD ARGS…) PROBE…",
		Short: "probe a process or a kernel and print a line for each hit",
		Long:  traceHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := atDash(c, args)
			f.others = probes
			return f.run(cmd)
		},
	}
	f.flags(c)
	return c
}

// run is the verb.
func (f *traceFlags) run(cmd []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	defs, err := f.definitions()
	if err != nil {
		return err
	}
	if ok, err := f.elsewhere(defs, cmd); ok || err != nil {
		return err
	}
	t := &tracing{f: f}
	if t.printed, err = newLines(lineOptions{con: f.con, path: f.out, format: f.format, stat: f.stat, count: f.count}); err != nil {
		return err
	}
	show := t.printed.hit
	switch {
	case f.every.named():
		show = t.printed.namedByProcess(show)
	case f.of.kernel:
		show = t.kernelHit
	case len(f.bound) > 0:
		show = newTriggering(t).hit
	}
	t.hits = newHitQueue(show, t.printed.lost, t.printed.flush)
	t.end = f.con.catchEnd(t.hits.takeAll)
	return errors.Join(t.run(defs, cmd), t.close())
}

// open makes what is traced. Each kind of target has its own flags.
func (t *tracing) open(cmd []string) (tracee, error) {
	f := t.f
	switch {
	case f.every.named():
		return openExecutable(t, cmd), nil
	case f.con.host != nil:
		return f.con.host.join(asked{con: f.con, of: &f.of, buffer: f.buffer, text: f.text}, t.hits.add)
	case f.of.kernel:
		return openKernel(f)
	case f.of.guest != "":
		spec, err := f.con.guestSpec(f.of.guest)
		if err != nil {
			return nil, err
		}
		return openGuest(spec)
	}
	return openProcess(f.of.pid, cmd, f.buffer, f.counters, textModes[f.text])
}

// elsewhere runs the verb in the process that holds what it probes, if it is to: see console.elsewhere.
func (f *traceFlags) elsewhere(defs []*event.Def, cmd []string) (ok bool, err error) {
	if f.con.host != nil || f.alone || f.of.kernel || f.every.named() {
		return false, nil
	}
	for _, d := range defs { // that process stands in another directory
		object := cmp.Or(d.Place.Path, d.Place.Module)
		if f.of.guest != "" || !strings.Contains(object, "/") || path.IsAbs(object) {
			continue
		}
		if err := new(symbol.ObjectSearch).Find(object); err != nil {
			return false, d.Refuse(event.BadProbeAddr, d.Place.Pos, "", err)
		}
	}
	if len(cmd) > 0 {
		return true, f.con.startElsewhere(cmd)
	}
	return f.con.elsewhere(&f.of, true)
}

// run traces, and ends with nothing of the tracer's in the target.
func (t *tracing) run(defs []*event.Def, cmd []string) (err error) {
	if t.s, err = t.open(cmd); err != nil {
		return err
	}
	if len(cmd) > 0 {
		t.end.leaveKeys()
	}
	t.printed.print.Names = t.s.Names()
	o := &kprobes.AddOptions{Count: t.f.counters, Skip: t.skipped, Late: true, Found: true, Tactic: arch.Tactic(t.f.tactic), Trampoline: t.f.stubs, Inlines: t.f.inlining(), Budget: t.f.budget}
	if t.define != nil {
		defs, err = t.define(t.s, defs)
	}
	if err == nil {
		err = t.s.Add(defs, o)
	}
	if err == nil && t.added != nil {
		err = t.added(t.s)
	}
	if err != nil {
		return errors.Join(err, t.s.Leave(nil), t.s.Close())
	}
	t.tellOf(t.s)
	if err = t.s.Run(); err != nil {
		return errors.Join(err, t.s.Close())
	}
	if t.f.verbose {
		fmt.Fprintln(t.f.con.stderr, "kprobe: the probes are in place")
	}
	t.loop()
	err = t.s.Leave(t.hits.add)
	t.s.Losses(true, t.hits.lose)
	t.end.release()
	err = errors.Join(err, t.close())
	t.summary()
	return errors.Join(err, t.s.Status(), t.s.Close())
}

// tellOf tells what is to be known of a tracee's events.
func (t *tracing) tellOf(s tracee) {
	if !t.f.quiet {
		s.Waiting(t.waiting)
		s.Inlined(t.inlined)
	}
	if t.f.verbose {
		s.Slower(t.slower)
		s.Stubs(t.stubs)
		s.LeftOut(t.leftOut)
	}
}

// close prints what is left and ends the output; the first time it tells what went wrong with it.
func (t *tracing) close() error {
	if t.hits == nil {
		return nil
	}
	t.hits.close()
	t.lost = t.hits.losses()
	t.hits = nil
	if t.left != nil {
		t.left()
	}
	return t.printed.finish()
}

func (t *tracing) skipped(name string, why error) {
	if t.f.verbose || !t.f.patterns && !t.f.quiet { // what is left out of a pattern is many
		var bad *event.Error // the definition is a pattern, and nothing is wrong with it
		if errors.As(why, &bad) && bad.Err != nil {
			why = bad.Err
		}
		fmt.Fprintf(t.f.con.stderr, "kprobe: %s is left out: %v\n", name, why)
	}
}

// waiting tells of an event whose object is not there: it may also be mistyped.
func (t *tracing) waiting(name string, why error) {
	fmt.Fprintf(t.f.con.stderr, "kprobe: %s waits for its object: %v\n", name, why)
}

// inlined tells of an event at a call that was inlined.
func (t *tracing) inlined(name, function, place string) {
	fmt.Fprintf(t.f.con.stderr, "kprobe: %s is %s, inlined in %s\n", name, function, place)
}

// slower tells of an event that has not the fastest tactic, and why.
func (t *tracing) slower(name, tactic string, why error) {
	fmt.Fprintf(t.f.con.stderr, "kprobe: %s has tactic=%s: %v\n", name, tactic, why)
}

// stubs tells of a return probe that does not stand at its function's exits, and why.
func (t *tracing) stubs(name string, why error) {
	fmt.Fprintf(t.f.con.stderr, "kprobe: %s has returns=%s: %v\n", name, kprobes.ReturnsTrampoline, why)
}

// leftOut tells of a parameter that $arg* does not record.
func (t *tracing) leftOut(name, param, why string) {
	fmt.Fprintf(t.f.con.stderr, "kprobe: %s leaves out parameter %s: %s\n", name, param, why)
}

// loop reads until the target ends, somebody stops it, or enough was read. A goroutine of its own reads:
// a change of probes can take long, and the ring would overflow meanwhile.
func (t *tracing) loop() {
	stop, ended, pending := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(ended)
		t.read(stop, pending)
	}()
	t.follow(pending)
	t.hits.takeAll()
	close(stop)
	<-ended
}

// read hands the hits to the printer until it is told to stop, and tells when Sync should be called now.
func (t *tracing) read(stop <-chan struct{}, pending chan<- struct{}) {
	idle := time.NewTimer(0)
	defer idle.Stop()
	pause := pollMin
	for {
		n := t.s.Poll(t.hits.add)
		t.s.Losses(false, t.hits.lose)
		if n > 0 {
			pause = pollMin
		} else {
			t.hits.flush()
			pause = min(2*pause, pollMax)
		}
		if t.s.Pending() {
			select {
			case pending <- struct{}{}:
			default:
			}
		}
		idle.Reset(pause)
		select {
		case <-stop:
			return
		case <-idle.C:
		}
	}
}

// follow follows what changes in the target until the trace is to end.
func (t *tracing) follow(pending <-chan struct{}) {
	var end <-chan time.Time
	if t.f.duration > 0 {
		end = time.After(t.f.duration)
	}
	look := time.NewTimer(syncEvery)
	defer look.Stop()
	var tick <-chan time.Time
	if t.ticked != nil {
		each := time.NewTicker(t.every)
		defer each.Stop()
		tick = each.C
	}
	for {
		select {
		case <-tick:
			t.ticked()
		case <-t.end.asked:
			return
		case <-end:
			return
		case <-t.s.Exited():
			return
		case <-t.printed.full:
			return
		case <-pending:
		case <-look.C:
		}
		if t.sync() || t.printed.noReader() {
			return
		}
		look.Reset(syncEvery)
	}
}

// sync follows what changes in the target, and says whether it has ended.
func (t *tracing) sync() (ended bool) {
	ended, err := t.s.Sync()
	if err != nil && (ended || !t.f.quiet) {
		fmt.Fprintf(t.f.con.stderr, "kprobe: %v\n", err)
	}
	if !t.f.quiet {
		t.s.Exceeded(t.exceeded)
	}
	return ended
}

// syncEvery is the time between two looks at what has changed in the target.
const syncEvery = 20 * time.Millisecond

// The pause between two looks at the ring grows from pollMin while nothing comes.
const (
	pollMin = 100 * time.Microsecond
	pollMax = 2 * time.Millisecond
)

// summary writes the last lines: one for each event.
func (t *tracing) summary() {
	for _, r := range t.s.Remarks() {
		fmt.Fprintf(t.f.con.stderr, "kprobe: %s\n", r)
	}
	all := t.s.Totals()
	if t.sum != nil {
		t.sum(all)
	}
	for e, n := range t.lost {
		for _, s := range all {
			if s.Event == e.Group+"/"+e.Name {
				s.Lost += n
			}
		}
	}
	for _, s := range all {
		for _, b := range s.bugs {
			fmt.Fprintf(t.f.con.stderr, "kprobe: %s\n", b)
		}
	}
	for _, s := range all {
		if t.f.format == "json" {
			b, err := json.Marshal(s)
			if err == nil {
				fmt.Fprintf(t.f.con.stderr, "%s\n", b)
			}
			continue
		}
		s.print(t.f.con.stderr)
	}
	if x, ok := t.s.(*tracedExecutable); ok {
		x.processes(t.f.con.stderr, t.f.format)
	}
}
