package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
)

// setFiles are the sets of --set: a file for each, with a / in the name as a -. The first line is a comment with the name and the version,
// each other line a probe.
//
//go:embed sets/*.txt
var setFiles embed.FS

// setNames lists the sets.
func setNames() (out []string) {
	files, err := fs.Glob(setFiles, "sets/*.txt")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for _, f := range files {
		out = append(out, strings.ReplaceAll(strings.TrimSuffix(path.Base(f), ".txt"), "-", "/"))
	}
	slices.Sort(out)
	return out
}

// probesOf gives the probes of a set.
func probesOf(set string) ([]string, error) {
	b, err := setFiles.ReadFile("sets/" + strings.ReplaceAll(set, "/", "-") + ".txt")
	if err != nil {
		return nil, usagef("--set %q: no set is called so; there are %s", set, strings.Join(setNames(), ", "))
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			out = append(out, line)
		}
	}
	return out, nil
}

// takeSets adds the probes of the sets behind those of the command line.
func (g *spanning) takeSets() error {
	for _, name := range g.sets {
		probes, err := probesOf(name)
		if err != nil {
			return err
		}
		for range probes {
			g.ofSets = append(g.ofSets, name)
		}
		g.f.others = append(g.f.others, probes...)
	}
	return nil
}

// choose leaves out the probes of sets whose functions the program has not, or which can not be probed. Where the program has no debug
// information that names the arguments the function goes without. A set of which nothing is left is refused.
func (g *spanning) choose() error {
	left := map[string]int{}
	why := map[string]error{}
	var calls []*spanned
	for _, c := range g.calls {
		if c.set == "" {
			calls = append(calls, c)
			continue
		}
		err := g.core.Check(c.given, &engine.AddOptions{})
		var bad *event.Error
		if errors.As(err, &bad) && (bad.Code == event.NoBTFArg || bad.Code == event.NosupBTFArg || bad.Code == event.NoBTFField) {
			g.tell("%s goes without its arguments: %v", c.given.Place.Symbol, plainReason(err))
			c.given.Args = nil
			err = g.core.Check(c.given, &engine.AddOptions{})
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

// tell tells what is left out, if that is asked for.
func (g *spanning) tell(format string, args ...any) {
	if g.f.verbose {
		g.say(format, args...)
	}
}
