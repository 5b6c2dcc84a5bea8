package main

import (
	"bufio"
	"errors"
	"fmt"

	"kprobes.dev/kprobes/internal/symbol"
)

// noFunction says that none matches, and what may be meant.
func noFunction(glob string, similarTo []string) error {
	return fmt.Errorf("no function matches %q%s", glob, symbol.DidYouMean(similarTo[:min(len(similarTo), symbol.MaxNearest)]))
}

// printFuncs writes address, size, name and module of each function that matches: the
// address is what nm prints. told, if not nil, tells more of a function, in a line of its own; "": it has nothing to tell.
func printFuncs(w *bufio.Writer, im *symbol.Image, glob, module string, told func(*symbol.Func) string) int {
	n := 0
	for _, fn := range im.Glob(glob) {
		if fn.PLT || !fn.Candidate() {
			continue
		}
		n++
		fmt.Fprintf(w, "%016x %7d %s", fn.Addr, fn.Size, clean(fn.Pretty()))
		if module != "" {
			fmt.Fprintf(w, " [%s]", clean(module))
		}
		fmt.Fprintln(w)
		if told == nil {
			continue
		}
		if more := told(fn); more != "" {
			fmt.Fprintf(w, "\t%s\n", clean(more))
		}
	}
	return n
}

// finishFuncs ends a list of the n functions of objects that match. None is an error, which says
// what may be meant.
func finishFuncs(w *bufio.Writer, n int, glob string, in []*symbol.Module) error {
	if err := w.Flush(); err != nil || n > 0 {
		return err
	}
	var similarTo []string
	for _, m := range in {
		fns, err := m.Image.Lookup(glob)
		var missing *symbol.NotFoundError
		if errors.As(err, &missing) {
			if missing.Variable {
				return fmt.Errorf("no function is called %q: %s", glob, missing.Reason)
			}
			similarTo = append(similarTo, missing.Similar...)
		}
		for _, fn := range fns {
			similarTo = append(similarTo, fn.Pretty())
		}
	}
	return noFunction(glob, similarTo)
}
