package spanmaker

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
)

// choose leaves out the calls of sets whose functions the program has not, or which can not be probed. A set of which nothing is left is
// refused.
func (m *Maker) choose() error {
	m.missing = map[string]error{}
	left := map[string]bool{}
	var calls []*Call
	for _, c := range m.calls {
		if c.Set == "" {
			calls = append(calls, c)
			continue
		}
		err := m.fit(c)
		var asked *AskedError
		if errors.As(err, &asked) {
			return err
		}
		if err != nil {
			m.detail("%s of %s %s is left out: %v", c.Def.Place.Symbol, m.o.Words.Set, c.Set, Reason(err))
			m.missing[c.Set] = Reason(err)
			continue
		}
		left[c.Set] = true
		calls = append(calls, c)
	}
	m.calls = calls
	maps.DeleteFunc(m.missing, func(name string, _ error) bool { return left[name] })
	for _, name := range m.o.Sets {
		if why := m.missing[name]; why != nil {
			return fmt.Errorf("%s %s: the program has none of its functions: %w", m.o.Words.Set, name, why)
		}
	}
	return nil
}

// fit makes the definition of a call of a set one that the program can take: with the arguments that it knows, and the conditions that
// name no others. It says why there is none; the error is an *AskedError if the set is wrong, whatever the program.
func (m *Maker) fit(c *Call) error {
	def := *c.Def
	def.Args, def.Filter = nil, ""
	if err := m.placed(&def); err != nil {
		return err
	}
	if err := m.core.Check(&def, m.o.Add); err != nil {
		return err
	}
	complete := true
	for _, a := range c.Def.Args {
		known, err := m.allKnown(&def, slices.Concat([]event.Arg{a}, c.Or[a.Name]))
		switch {
		case isWrong(err):
			return wrongf("%s: %s: %w", m.o.Words.Set, c.Where, err)
		case err != nil:
			complete = false
			m.detail("%s goes without %s: %v", def.Place.Symbol, c.attribute(a.Name), Reason(err))
			continue
		}
		c.alternatives(known)
		def.Args = append(def.Args, known...)
	}
	return m.fitConditions(c, &def, complete)
}

// placed has a function of an object that is not mapped be that of the program, if it is linked into that. Else the object may come, if the
// program loads any.
func (m *Maker) placed(def *event.Def) error {
	space := m.core.Target().Space()
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
func (m *Maker) allKnown(def *event.Def, all []event.Arg) (known []event.Arg, first error) {
	for _, a := range all {
		one := *def
		one.Args = []event.Arg{a}
		prog, err := m.core.Compiled(&one)
		switch {
		case isWrong(err):
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
func (c *Call) alternatives(known []event.Arg) {
	failing := c.Failing
	for i := 1; i < len(known); i++ {
		name := known[0].Name
		known[i].Name = fmt.Sprintf("%s_%d", name, i+1)
		c.Names = maps.Clone(c.Names)
		if c.Names == nil {
			c.Names = map[string]string{}
		}
		c.Names[known[i].Name] = c.attribute(name)
		if mayName(failing, &known[0]) {
			c.Failing += " || " + identifier.ReplaceAllStringFunc(failing, func(word string) string {
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
func (m *Maker) fitConditions(c *Call, def *event.Def, complete bool) error {
	prog, err := m.core.Compiled(def)
	if err != nil {
		return err
	}
	wrong := func(name, text string, err error) error {
		return wrongf("%s: %s: --%s %q: %w", m.o.Words.Set, c.Where, name, text, err)
	}
	if prog != nil && c.Failing != "" {
		if _, err := failingOf(c, prog); err != nil && complete {
			return wrong("error", c.Failing, err)
		} else if err != nil {
			m.detail("%s goes without --error %q: %v", def.Place.Symbol, c.Failing, err)
			c.Failing = ""
		}
	}
	if prog != nil && c.Def.Filter != "" {
		entry, _ := m.split(c, def)
		if prog, err = m.core.Compiled(&entry); err != nil {
			return err
		}
		if _, err := failingOf(&Call{Failing: c.Def.Filter}, prog); err != nil && complete {
			return wrong("if", c.Def.Filter, fmt.Errorf("%w; results are for --error", err))
		} else if err != nil {
			return fmt.Errorf("--if %q can not be tested: %w", c.Def.Filter, err)
		}
	}
	def.Filter = c.Def.Filter
	c.Def = def
	return nil
}
