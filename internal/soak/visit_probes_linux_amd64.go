package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	if len(s.Objects) > 0 && rng.IntN(2) == 0 {
		object = s.Objects[rng.IntN(len(s.Objects))]
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

// open opens the files that are probed: those that a run maps.
func (s *VisitStage) open(pid int) error {
	names := map[string]bool{s.cmd.Args[0]: true}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) < 6 || !strings.Contains(f[1], "x") {
			continue
		}
		for _, want := range append([]string{"libc.so.6"}, s.Objects...) {
			if filepath.Base(f[5]) == want {
				names[f[5]] = true
			}
		}
	}
	for path := range names {
		o, err := openObject(path, path == s.cmd.Args[0])
		if err != nil {
			return err
		}
		s.objects = append(s.objects, o)
	}
	return nil
}
