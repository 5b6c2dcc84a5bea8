package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/spanset"
	"kprobes.dev/kprobes/internal/symbol"
)

// setText reads the file of a set.
func (c *console) setText(name string) ([]byte, error) {
	if !spanset.IsFile(name) {
		text, err := spanset.Text(name)
		if err != nil {
			return nil, usageError{fmt.Errorf("--set: %w", err)}
		}
		return text, nil
	}
	f, err := os.Open(c.path(name))
	if err != nil {
		return nil, c.pathError(err, name)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, spanset.MaxSize+1))
	return text, c.pathError(err, name)
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
	for _, name := range g.sets {
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
			g.calls = append(g.calls, &spanned{given: c.Def, names: c.Names, kind: c.Kind, failing: c.Error, set: name, where: c.Where, or: c.Or})
		}
	}
	return nil
}

// choose leaves out the calls of sets whose functions the program has not, or which can not be probed. A set of which nothing is left is
// refused.
func (g *spanning) choose() error {
	left := map[string]int{}
	why := map[string]error{}
	var calls []*spanned
	for _, c := range g.calls {
		if c.set == "" {
			calls = append(calls, c)
			continue
		}
		err := g.fit(c)
		var wrong usageError
		if errors.As(err, &wrong) {
			return err
		}
		if err != nil {
			g.tell("%s of --set %s is left out: %v", c.given.Place.Symbol, c.set, plainReason(err))
			why[c.set] = plainReason(err)
			continue
		}
		left[c.set]++
		calls = append(calls, c)
	}
	g.calls = calls
	for _, name := range g.sets {
		if left[name] == 0 {
			return fmt.Errorf("--set %s: the program has none of its functions: %w", name, why[name])
		}
	}
	return nil
}

// fit makes the definition of a call of a set one that the program can take: with the arguments that it knows, and the conditions that
// name no others. It says why there is none; the error is a usageError if the set is wrong, whatever the program.
func (g *spanning) fit(c *spanned) error {
	def := *c.given
	def.Args, def.Filter = nil, ""
	if err := g.placed(&def); err != nil {
		return err
	}
	if err := g.core.Check(&def, g.adding()); err != nil {
		return err
	}
	complete := true
	for _, a := range c.given.Args {
		known, err := g.allKnown(&def, slices.Concat([]event.Arg{a}, c.or[a.Name]))
		switch {
		case isUsage(err):
			return usageError{fmt.Errorf("--set: %s: %w", c.where, err)}
		case err != nil:
			complete = false
			g.tell("%s goes without %s: %v", def.Place.Symbol, c.attribute(a.Name), plainReason(err))
			continue
		}
		c.alternatives(known)
		def.Args = append(def.Args, known...)
	}
	return g.fitConditions(c, &def, complete)
}

// adding is how the probes will be added.
func (g *spanning) adding() *engine.AddOptions {
	return &engine.AddOptions{Late: true, Found: true, Tactic: arch.Tactic(g.f.tactic), Trampoline: g.f.stubs, Inlines: engine.InlinesNone}
}

// placed has a function of an object that is not mapped be that of the program, if it is linked into that. Else the object may come, if the
// program loads any.
func (g *spanning) placed(def *event.Def) error {
	space := g.core.Target().Space()
	main := space.Main()
	if def.Place.Module == "" || main == nil {
		return nil
	}
	_, err := space.Module(def.Place.Module)
	if !errors.Is(err, symbol.ErrNoModule) {
		return err
	}
	if _, missing := main.Image.Lookup(def.Place.Symbol); missing == nil {
		def.Place.Module = main.Name
		return nil
	}
	if main.Image.Interp() == "" {
		return fmt.Errorf("the program loads no %s, and has no %s itself", def.Place.Module, def.Place.Symbol)
	}
	return nil
}

// allKnown gives the first of several arguments that the program knows, or why it does not know the first. Behind one whose value may be of
// another type at the hit, and is not there then, come the others that it knows: as many may be there as the program has types.
func (g *spanning) allKnown(def *event.Def, all []event.Arg) (known []event.Arg, first error) {
	for _, a := range all {
		one := *def
		one.Args = []event.Arg{a}
		prog, err := g.core.Compiled(&one)
		switch {
		case isUsage(err):
			return nil, err
		case err == nil:
			known = append(known, a)
			if prog == nil || len(prog.Args[0].Checks) == 0 {
				return known, nil
			}
		case first == nil:
			first = err
		}
	}
	if len(known) > 0 {
		return known, nil
	}
	return nil, first
}

// alternatives names the arguments of which one is there at a hit: all become one attribute, and --error tests each.
func (c *spanned) alternatives(known []event.Arg) {
	failing := c.failing
	for i := 1; i < len(known); i++ {
		name := known[0].Name
		known[i].Name = fmt.Sprintf("%s_%d", name, i+1)
		c.names = maps.Clone(c.names)
		if c.names == nil {
			c.names = map[string]string{}
		}
		c.names[known[i].Name] = c.attribute(name)
		if mayName(failing, &known[0]) {
			c.failing += " || " + identifier.ReplaceAllStringFunc(failing, func(word string) string {
				if word == name {
					return known[i].Name
				}
				return word
			})
		}
	}
}

// fitConditions has a call have the conditions of its set. One that can not be tested since the call goes without an argument is left out: a
// call without --if is left out with it.
func (g *spanning) fitConditions(c *spanned, def *event.Def, complete bool) error {
	prog, err := g.core.Compiled(def)
	if err != nil {
		return err
	}
	wrong := func(name, text string, err error) error {
		return usageError{fmt.Errorf("--set: %s: --%s %q: %w", c.where, name, text, err)}
	}
	if prog != nil && c.failing != "" {
		if _, err := failingOf(c, prog); err != nil && complete {
			return wrong("error", c.failing, err)
		} else if err != nil {
			g.tell("%s goes without --error %q: %v", def.Place.Symbol, c.failing, err)
			c.failing = ""
		}
	}
	if prog != nil && c.given.Filter != "" {
		entry, _ := g.split(c, def)
		if prog, err = g.core.Compiled(&entry); err != nil {
			return err
		}
		if _, err := failingOf(&spanned{failing: c.given.Filter}, prog); err != nil && complete {
			return wrong("if", c.given.Filter, fmt.Errorf("%w; results are for --error", err))
		} else if err != nil {
			return fmt.Errorf("--if %q can not be tested: %w", c.given.Filter, err)
		}
	}
	def.Filter = c.given.Filter
	c.given = def
	return nil
}

// tell tells what is left out, if that is asked for.
func (g *spanning) tell(format string, args ...any) {
	if g.f.verbose {
		g.say(format, args...)
	}
}
