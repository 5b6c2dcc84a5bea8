package main

import (
	"fmt"

	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/internal/spanset"
)

// setText reads the file of a set.
func (c *console) setText(name string) ([]byte, error) {
	if spanset.IsFile(name) {
		text, err := spanset.File(c.path(name))
		return text, c.pathError(err, name)
	}
	text, err := spanset.Text(name)
	if err != nil {
		return nil, usageError{fmt.Errorf("--set: %w", err)}
	}
	return text, nil
}

// printSet prints the file of a set that comes with the command.
func (c *console) printSet(name string) error {
	text, err := spanset.Text(name)
	if err != nil {
		return usageError{fmt.Errorf("--print-set: %w", err)}
	}
	_, err = c.stdout.Write(text)
	return err
}

// takeSets adds the calls of the sets behind those of the command line.
func (g *spanning) takeSets() error {
	for _, name := range g.o.Sets {
		text, err := g.f.con.setText(name)
		if err != nil {
			return err
		}
		calls, err := spanset.Read(name, text)
		if err != nil {
			return usageError{fmt.Errorf("--set: %w", err)}
		}
		for _, c := range calls {
			c.Def.Filter = g.f.only.and(c.Def.Filter)
			g.calls = append(g.calls, spanmaker.OfSet(name, c))
		}
	}
	return nil
}
