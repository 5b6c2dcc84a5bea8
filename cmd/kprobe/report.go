package main

import (
	"bufio"
	"strconv"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/tracedat"
)

const reportHelp = `Print a trace.dat file, which kprobe record or trace-cmd has written, with the lines of
trace-cmd report, or make a trace for Perfetto of it. No target is needed; the file may come
from another machine.`

func newReport() *cobra.Command {
	var path, format, out string
	c := &cobra.Command{
		Use:   "report [-i FILE]",
		Short: "print a trace.dat file",
		Long:  reportHelp,
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case format == formPerfetto && out == "":
				return usagef("--format %s: give the name of the file to write: -o FILE", format)
			case format == formPerfetto:
				return writePerfetto(path, out)
			case format == "parquet":
				return usagef("format %q: the command kprobe-parquet makes Parquet files, which is a module of its own (docs/exports.md); here: text or %s", format, formPerfetto)
			case format != "text":
				return usagef("format %q: text or %s", format, formPerfetto)
			case out != "":
				return usagef("-o is for --format %s: lines go to standard output", formPerfetto)
			}
			return printFile(path)
		},
	}
	fl := c.Flags()
	fl.StringVarP(&path, "input", "i", defaultFile, "the file")
	fl.StringVar(&format, "format", "text", "text, or a trace for Perfetto in the file of -o: perfetto")
	fl.StringVarP(&out, "output", "o", "", "the file to write")
	return c
}

// printFile prints a file.
func printFile(path string) error {
	f, err := tracedat.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(stdout, 256<<10)
	var line []byte
	line = append(line, "cpus="...)
	line = append(line, strconv.Itoa(f.CPUs())...)
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	err = f.Each(func(r *tracedat.Record) error {
		line = f.AppendReport(line[:0], r)
		_, err := w.Write(line)
		return err
	})
	if err != nil {
		return err
	}
	return w.Flush()
}
