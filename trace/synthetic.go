package trace

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// traced records a synthetic event.
func (in *Instance) traced(def *event.Synthetic, h *hit.Hit, vs []fetch.Value, shown hit.Shown) {
	if !shown.Line || !in.chosen(h.TID) {
		return
	}
	e := in.lines[def]
	if e == nil {
		e = &hit.Event{Group: event.SyntheticGroup, Name: def.Name, Message: true}
		in.lines[def] = e
	}
	in.text = hit.AppendSynthetic(in.text[:0], def, vs, in.names.Symbol)
	in.put(&hit.Hit{Event: e, Nanos: h.Nanos, CPU: h.CPU, TID: h.TID, Comm: h.Comm, Context: h.Context, Rec: in.text})
}

// WriteSynthetic does what a write to synthetic_events does: each line defines a synthetic event, or deletes one (!NAME). Errors, which
// are logged: *event.SyntheticError; ENOENT or EBUSY of a deletion.
func (in *Instance) WriteSynthetic(text string) error {
	return in.changeSynthetic(func() error { return in.synths.Write(text) })
}

// ClearSynthetic is what opening synthetic_events with O_TRUNC does: all are deleted. EBUSY: one can not be, and none is.
func (in *Instance) ClearSynthetic() error { return in.changeSynthetic(in.synths.Truncate) }

// changeSynthetic changes the synthetic events, and lists them as events.
func (in *Instance) changeSynthetic(do func() error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	err := in.doSynthetic(do)
	in.note(err)
	return err
}

func (in *Instance) doSynthetic(do func() error) error {
	in.drain()
	in.pollMu.Lock()
	err := do()
	defs := in.synths.All()
	in.pollMu.Unlock()
	is := map[*event.Synthetic]bool{}
	for _, d := range defs {
		is[d] = true
	}
	var gone []*entry
	for _, e := range in.order {
		if e.synthetic != nil && !is[e.synthetic] {
			gone = append(gone, e)
		}
		delete(is, e.synthetic)
	}
	in.dropSynthetics(gone)
	for _, d := range defs {
		if is[d] {
			err = errors.Join(err, in.enterSynthetic(d))
		}
	}
	return err
}

// enterSynthetic lists a synthetic event as an event.
func (in *Instance) enterSynthetic(d *event.Synthetic) error {
	id, err := in.newID()
	if err != nil {
		return err
	}
	e := &entry{group: event.SyntheticGroup, name: d.Name, id: id, synthetic: d}
	in.enter(e)
	return nil
}

// dropSynthetics takes those of some events off the list that are synthetic.
func (in *Instance) dropSynthetics(es []*entry) {
	for _, e := range es {
		if e.synthetic != nil {
			in.takeAway(e)
		}
	}
}

// WriteSynthetics writes synthetic_events: the definitions in the order of their making.
func (in *Instance) WriteSynthetics(w io.Writer) error {
	in.pollMu.Lock()
	text := in.synths.String()
	in.pollMu.Unlock()
	_, err := io.WriteString(w, text)
	return err
}

// WriteDynamic is Write for dynamic_events, which takes definitions of synthetic events, s:[synthetic/]NAME FIELDS, and those of WriteUprobe too.
func (in *Instance) WriteDynamic(commands string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i, line := range strings.Split(commands, "\n") {
		if err := in.dynamic(line, i+1); err != nil {
			in.note(err)
			return err
		}
	}
	return nil
}

func (in *Instance) dynamic(line string, n int) error {
	if event.IsSynthetic(line) {
		def, err := event.ParseSynthetic(line)
		if err != nil {
			return err
		}
		return in.doSynthetic(func() error { return in.synths.Define(def) })
	}
	if name := in.deletesSynthetic(line); name != "" {
		return in.doSynthetic(func() error { return in.synths.Delete(name) })
	}
	if event.IsUprobe(line) {
		return in.command(line, n, uprobeLines)
	}
	return in.command(line, n, allLines)
}

// deletesSynthetic is the synthetic event that a line deletes; "": none.
func (in *Instance) deletesSynthetic(line string) string {
	name, ok := strings.CutPrefix(strings.TrimSpace(line), "-:")
	name = strings.TrimPrefix(name, event.SyntheticGroup+"/")
	if e := in.entries[key(event.SyntheticGroup, name)]; ok && e != nil {
		return name
	}
	return ""
}

// ReplaceDynamic is Replace for dynamic_events: synthetic events are deleted too.
func (in *Instance) ReplaceDynamic() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.disarmSpareable(in.probes); err != nil {
		return err
	}
	if err := in.doSynthetic(in.synths.Truncate); err != nil {
		return err
	}
	in.drop(in.probes)
	return nil
}

// WriteDynamics writes dynamic_events: all definitions in the order of their making.
func (in *Instance) WriteDynamics(w io.Writer) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var b strings.Builder
	for _, p := range in.probes {
		fmt.Fprintln(&b, p.def)
	}
	for _, e := range in.order {
		if e.synthetic != nil {
			fmt.Fprintf(&b, "s:%s/%s\n", event.SyntheticGroup, e.synthetic)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
