package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/linux"
)

// ownKernel is the kernel that runs here as a tracee. It makes and runs the probes itself.
type ownKernel struct {
	*linux.Target
	triggers []linux.Trigger
}

// openKernel makes a tracee of the kernel.
func openKernel(f *traceFlags) (ownKernel, error) {
	t, err := linux.Open(&linux.Options{Buffer: f.buffer, Count: f.counters, Callers: f.stack})
	k := ownKernel{Target: t}
	for _, b := range f.bound {
		k.triggers = append(k.triggers, linux.Trigger{Def: b.def, Trigger: b.trigger})
	}
	return k, err
}

// kernelHit prints what the kernel has recorded: a stack is an entry of its own.
func (t *tracing) kernelHit(h *hit.Hit) {
	if linux.IsStack(h) {
		t.printed.stack(h)
		return
	}
	t.printed.hit(h)
}

func (k ownKernel) Add(defs []*event.Def, o *kprobes.AddOptions) error {
	err := k.Target.Add(defs, &linux.AddOptions{Skip: o.Skip, Triggers: k.triggers})
	var bad *event.TriggerError
	if errors.As(err, &bad) {
		return usageError{err}
	}
	return err
}

// Slower has nothing to tell: which tactic is taken is the kernel's business.
func (k ownKernel) Slower(func(name, tactic string, why error)) {}

// Stubs tells nothing: the kernel knows one way for all.
func (k ownKernel) Stubs(func(name string, why error)) {}

// LeftOut has nothing to tell: the kernel itself knows what $arg* stands for.
func (k ownKernel) LeftOut(func(name, param, why string)) {}

// Exceeded has nothing to tell: the kernel's probes have no budgets.
func (k ownKernel) Exceeded(func(name string, why error)) {}

// Inlined has nothing to tell: the kernel's tracer knows no inlined calls.
func (k ownKernel) Inlined(func(name, function, place string)) {}

// Waiting tells nothing: of modules that are not loaded the kernel keeps account.
func (k ownKernel) Waiting(func(name string, why error)) {}

// Run has nothing to release.
func (k ownKernel) Run() error { return nil }

// Losses has nothing to tell: the kernel counts what its ring has lost, for the summary.
func (k ownKernel) Losses(bool, func(d *event.Def, cpu int, records uint64)) {}

// Pending is never: modules come and go by themselves.
func (k ownKernel) Pending() bool { return false }

// Sync has nothing to follow.
func (k ownKernel) Sync() (ended bool, err error) { return false, nil }

// Exited is nil: nobody outlives the own kernel.
func (k ownKernel) Exited() <-chan struct{} { return nil }

func (k ownKernel) Totals() []*total {
	var out []*total
	for _, s := range k.Target.Totals() {
		out = append(out, &total{
			Event: s.Group + "/" + s.Name, name: s.Name,
			Hits: s.Hits, Missed: s.Missed, Lost: s.Lost, Tactic: s.Tactic,
		})
	}
	return out
}

func (k ownKernel) Remarks() []string {
	if err := k.Damage(); err != nil {
		return []string{fmt.Sprintf("records of the kernel's ring were not understood: %v", err)}
	}
	return nil
}

// Status is that of no program.
func (k ownKernel) Status() error { return nil }

// Close removes what Leave did not.
func (k ownKernel) Close() error { return k.Leave(func(*hit.Hit) {}) }

// listKernel writes the lines of kprobes/list that belong to probes of the engine's.
func listKernel() error {
	lines, err := linux.List()
	if err != nil {
		return err
	}
	for _, l := range lines {
		fmt.Fprintln(stdout, clean(l))
	}
	return nil
}

// detachKernel takes out what tracers that have ended left in the kernel; with force also
// what others have.
func detachKernel(force bool) error {
	all, err := linux.Lefts()
	if err != nil {
		return err
	}
	var errs []error
	n := 0
	for _, l := range all {
		if l.Gone || force {
			n++
			fmt.Fprintf(os.Stderr, "kprobe: kernel: %d probes of process %d removed\n", l.Probes, l.Holder.PID)
			errs = append(errs, l.Remove())
			continue
		}
		errs = append(errs, heldKernel(l))
	}
	if n == 0 && len(errs) == 0 {
		fmt.Fprintln(os.Stderr, "kprobe: the kernel holds nothing of ours")
	}
	return errors.Join(errs...)
}

// heldKernel says that somebody holds probes who is, or may be, alive.
func heldKernel(l *linux.Left) error {
	if !l.Mine {
		return fmt.Errorf("kernel: %d probes belong to process %d of another pid namespace, of which nothing is known here: go there, or give --force", l.Probes, l.Holder.PID)
	}
	return fmt.Errorf("kernel: %d probes are held by process %d, which runs: end it (Ctrl-C), or give --force", l.Probes, l.Holder.PID)
}

// funcsOfKernel lists the functions on which the kernel takes probes.
func funcsOfKernel(glob string) error {
	funcs, err := linux.Funcs(glob)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(stdout)
	for _, f := range funcs {
		fmt.Fprintf(w, "%016x %7d %s", f.Addr, f.Size, clean(f.Name))
		if f.Module != "" {
			fmt.Fprintf(w, " [%s]", clean(f.Module))
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil || len(funcs) > 0 {
		return err
	}
	all, err := linux.Funcs("*")
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return noFunction(glob, symbol.Nearest(glob, names))
}
