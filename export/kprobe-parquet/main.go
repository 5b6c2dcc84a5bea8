// Command kprobe-parquet makes Parquet files of a trace.dat file: see package parquet.
//
//	kprobe-parquet [-i trace.dat] [-o DIR] [-boot TIME]
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"kprobes.dev/kprobes/export/parquet"
)

func main() {
	in := flag.String("i", "trace.dat", "the `file` that kprobe record or trace-cmd has written")
	out := flag.String("o", ".", "the `directory` for the files, one for each event: GROUP.EVENT.parquet")
	boot := flag.String("boot", "", "when the machine had booted, as `2026-01-31T08:00:00Z` (uptime -s tells it): times are of the day then, and not since boot")
	flag.Parse()
	if err := run(*in, *out, *boot, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "kprobe-parquet: %v\n", err)
		os.Exit(1)
	}
}

func run(in, out, boot string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("argument %q: none are taken; files are named by -i and -o", rest[0])
	}
	var o parquet.Options
	if boot != "" {
		at, err := time.Parse(time.RFC3339Nano, boot)
		if err != nil {
			return fmt.Errorf("-boot %s: give a time as 2026-01-31T08:00:00Z: %w", boot, err)
		}
		o.Boot = at
	}
	files, lost, unknown, err := parquet.Convert(in, out, &o)
	if err != nil {
		return err
	}
	for _, f := range files {
		fmt.Printf("%s rows=%d\n", f.Path, f.Rows)
	}
	if lost > 0 {
		fmt.Fprintf(os.Stderr, "kprobe-parquet: %s: %d hits were lost when it was recorded\n", in, lost)
	}
	if unknown > 0 {
		fmt.Fprintf(os.Stderr, "kprobe-parquet: %s: %d records are of events that the file does not describe; they are left out\n", in, unknown)
	}
	return nil
}
