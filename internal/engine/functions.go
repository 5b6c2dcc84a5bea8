package engine

import "kprobes.dev/kprobes/internal/symbol"

// function analyses the function that holds a place, once.
func (c *Core) function(r symbol.Resolved) (*function, error) {
	start := r.Module.Runtime(r.Func.Addr)
	if f := c.fns[start]; f != nil {
		return f, nil
	}
	f, err := c.newFunction(r)
	if err == nil {
		c.fns[start] = f
	}
	return f, err
}

// newFunction analyses the function that holds a place. It may be called by several
// goroutines at once.
func (c *Core) newFunction(r symbol.Resolved) (*function, error) {
	f, err := c.scan.Function(r)
	if err != nil {
		return nil, err
	}
	return &function{knobs: &c.knobs, Function: f}, nil
}
