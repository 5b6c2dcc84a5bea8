package engine

import (
	"sync"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/vars"
)

// Name finds what a name of the program stands for.
func (v *env) Name(e *event.Expr, at fetch.Point) (*fetch.Var, error) {
	s, err := v.scope()
	if err != nil {
		return nil, err
	}
	return s.Find(e, at)
}

// Params lists the parameters of the function.
func (v *env) Params(fetch.Point) ([]string, error) {
	s, err := v.scope()
	if err != nil {
		return nil, err
	}
	return s.Names(), nil
}

// scope is what the debug information of the probed object says of the function.
func (v *env) scope() (*vars.Scope, error) {
	if v.vars != nil {
		return v.vars, nil
	}
	f, err := v.c.debug.of(v.m.Image)
	if err != nil {
		return nil, err
	}
	v.vars, err = vars.New(v.fn, &vars.Options{File: f, Machine: objfile.Of(v.m.Image.Machine()), ABI: v.ABI, Runtime: v.m.Runtime})
	return v.vars, err
}

// debugInfo has the debug information of images, each while it is used.
type debugInfo struct {
	mu    sync.Mutex
	files map[*symbol.Image]*symbol.Kept[debuginfo.File]
}

// of reads that of an image.
func (d *debugInfo) of(im *symbol.Image) (*debuginfo.File, error) {
	d.mu.Lock()
	kept := d.files[im]
	if kept == nil {
		if d.files == nil {
			d.files = map[*symbol.Image]*symbol.Kept[debuginfo.File]{}
		}
		kept = new(symbol.Kept[debuginfo.File])
		d.files[im] = kept
	}
	d.mu.Unlock()
	return kept.Get(func() (*debuginfo.File, error) { return debuginfo.New(im.DebugSection) })
}

// LeftOut tells which parameters $arg* does not record, and why.
func (e *Event) LeftOut() []fetch.LeftOut {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	if e.Prog == nil {
		return nil
	}
	return e.Prog.LeftOut
}
