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
	start := time.Now()
	sum, err := soak.Run(&o, func(r *soak.Round) { fmt.Println(r) })
	fmt.Printf("%s in %v\n", sum, time.Since(start).Round(time.Second))
	return err
}
