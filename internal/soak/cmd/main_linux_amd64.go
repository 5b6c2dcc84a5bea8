// Command cmd runs programs with probes at random places for as long as it is told and
// compares (package soak). It prints a line for each round and a summary, and ends with
// status 1 at the first difference, with what repeats it.
//
//	go run ./internal/soak/cmd -for 10m
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/soak"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run() error {
	o := soak.Options{}
	var names, seed string
	flag.DurationVar(&o.For, "for", 0, "go on for this long (0: as -rounds says)")
	flag.IntVar(&o.Rounds, "rounds", 1, "rounds of each program, if -for is not given")
	flag.StringVar(&names, "program", "", "only these programs, with commas between them")
	flag.StringVar(&seed, "seed", "", "of the first round; later ones follow from it (default: a random one)")
	flag.IntVar(&o.Probes, "probes", 300, "probes of a round")
	flag.IntVar(&o.Size, "size", 2, "of the input")
	flag.StringVar(&o.Dir, "dir", "", "directory to work in (default: a temporary one, which is removed)")
	visits := true
	flag.BoolVar(&visits, "visits", true, "also run programs to which kprobe comes and goes, again and again")
	flag.Parse()
	if err := soak.Fix(); err != nil {
		return err
	}
	o.Seed = rand.Uint64()
	if seed != "" {
		n, err := strconv.ParseUint(seed, 0, 64)
		if err != nil {
			return fmt.Errorf("-seed: %w", err)
		}
		o.Seed = n
	}
	if names != "" {
		o.Programs = strings.Split(names, ",")
	}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "kprobes-soak-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.Dir = dir
	}
	if visits {
		o.Kprobe = filepath.Join(o.Dir, "kprobe")
		if out, err := exec.Command("go", "build", "-o", o.Kprobe, "kprobes.dev/kprobes/cmd/kprobe").CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
		if err := os.Chmod(o.Dir, 0o755); err != nil { // servers do not run as root
			return err
		}
	}
	start := time.Now()
	sum, err := soak.Run(&o, func(r fmt.Stringer) { fmt.Println(r) })
	fmt.Printf("%s in %v\n", sum, time.Since(start).Round(time.Second))
	return err
}
