package soak

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
)

// set is what a visit probes: arguments for kprobe trace.
type set struct {
	name  string
	args  []string
	lines []string // definitions for --probes; those that are refused are left out
}

// sets are the kinds of visits. The program's file is where a pattern without an object looks.
func (s *VisitStage) sets(rng *rand.Rand) []set {
	object := "libc.so.6"
	for _, o := range s.objects {
		if !o.Main && rng.IntN(2) == 0 {
			object = o.Name
		}
	}
	return []set{
		{name: "functions", args: []string{"--counters", "p *"}},
		{name: "records", args: []string{"p *"}},
		{name: "returns", args: []string{"--counters", "r *"}},
		{name: "both", args: []string{"--counters", "p *", "r *"}},
		{name: "object", args: []string{"--counters", "p " + object + ":*", "r " + object + ":*"}},
		{name: "trampolines", args: []string{"--counters", "--trampoline", "r *", "r " + object + ":*"}},
		{name: "inner", args: []string{"--counters"}, lines: s.inner(rng, 300)},
		{name: "inner records", lines: s.inner(rng, 200)},
	}
}

// inner are probes at random instructions in functions of the program's file, of the C library and of
// the program's Objects.
func (s *VisitStage) inner(rng *rand.Rand, n int) []string {
	var out []string
	for len(out) < n && len(s.objects) > 0 {
		o := s.objects[rng.IntN(len(s.objects))]
		fns := o.Image.Funcs()
		if len(fns) == 0 {
			return out
		}
		fn := fns[rng.IntN(len(fns))]
		at := o.instructions(fn)
		if len(at) == 0 || fn.PLT || fn.IFunc {
			continue
		}
		where := fmt.Sprintf("0x%x", at[rng.IntN(len(at))])
		if !o.Main {
			where = o.Name + ":" + where
		}
		out = append(out, fmt.Sprintf("p:e%d %s", len(out), where))
	}
	return out
}

// open opens the files that are probed, once a process has mapped them all.
func (s *VisitStage) open(pid int) error {
	paths := map[string]bool{s.cmd.Args[0]: true}
	for _, m := range codeMaps(pid) {
		if s.probes(filepath.Base(m.path)) {
			paths[m.path] = true
		}
	}
	if len(paths) < 2+len(s.Objects) {
		return fmt.Errorf("process %d has not mapped all objects yet", pid)
	}
	for path := range paths {
		o, err := openObject(path, path == s.cmd.Args[0])
		if err != nil {
			return err
		}
		s.objects = append(s.objects, o)
	}
	slices.SortFunc(s.objects, func(a, b *Object) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// probes says whether a shared object is one of those that visits probe, whatever its version.
func (s *VisitStage) probes(name string) bool {
	return strings.HasPrefix(name, "libc.so.") || slices.ContainsFunc(s.Objects, func(o string) bool { return strings.HasPrefix(name, o+".so") })
}
