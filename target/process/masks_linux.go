package process

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// learnMasks finds out in which functions of a Go program a fault is always caught, once the handler is there: where the
// program has no C, and changes neither signal masks nor handlers itself, in all but those that its runtime runs with
// signals blocked. Where it has C code that is known by thread (arch.Masks), if nothing but the C library replaces handlers.
// Of a program without handlers nothing is known, unless Start has made it: its variables may not be relocated yet.
func (t *Target) learnMasks() {
	t.masked, t.setters = nil, nil
	if !t.module[0].im.IsGo() || t.begun.Load() && !t.catches() {
		return
	}
	if codescan.ChangesMasks(t.Space(), t.Read) != nil {
		if t.setters = t.handlerSetters(); t.setters == nil || codescan.ChangesMasksInGo(t.Space(), t.Read) != nil {
			return
		}
	}
	if path, err := codescan.SignalPath(t.Space(), t.Read); err == nil {
		t.masked = path
	}
}

// handlerSetters lists the functions of the C library by which a Go program's C code may replace handlers of signals; nil: they are not known,
// or it has others.
func (t *Target) handlerSetters() (out []target.Sharing) {
	main := t.Space().Main()
	for _, m := range t.Space().Modules() {
		if m == main {
			continue
		}
		c, err := tasks(m.Image)
		if err != nil || c.acts || m.Image.IsGo() {
			return nil
		}
		if !isCLibrary(m.Image) {
			continue
		}
		points, err := sharersOf(m, c)
		if err != nil || len(points) > 0 && len(out) > 0 { // two of them
			return nil
		}
		for _, p := range points {
			if p.Share == arch.ShareSyscall || p.Share == arch.ShareAction {
				out = append(out, p)
			}
		}
	}
	if !slices.ContainsFunc(out, func(s target.Sharing) bool { return s.Share == arch.ShareAction }) {
		return nil
	}
	return out
}

// useMasks settles, once the runtime is known, that masks are known by thread.
func (t *Target) useMasks() {
	t.writer.Masks, t.writer.Handled = nil, 0
	if t.masked == nil || t.setters == nil {
		return
	}
	l := &t.golang.layout
	t.writer.Handled = t.control.addr + hdrHandled
	t.writer.Masks = &arch.Masks{Table: t.control.addr + hdrMasks, IsExtra: l.IsExtra, NCgoCall: l.NCgoCall, NCgo: l.NCgo, Code: native.MaskCode()}
}

// FaultsCaught says whether no thread that is in the function at an address can have the signals of a fault blocked, or it is known which has
// (arch.CodegenEnv.Masks), and the handler that catches faults of loads is there (from when on says arch.CodegenEnv.Asks).
func (t *Target) FaultsCaught(fn uint64) bool {
	if t.masked == nil || t.golang == nil || t.setters != nil && t.writer.Masks == nil {
		return false
	}
	if _, may := t.masked[fn]; may {
		return false
	}
	f, _, ok := t.module[0].im.At(fn - t.module[0].bias)
	return ok && f.Lang == symbol.LangGo
}
