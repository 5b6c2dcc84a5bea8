package main

import (
	"bufio"
	"strconv"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/tracedat"
)

const reportHelp = `Print a trace.dat file, which kprobe record or trace-cmd has written, with the lines of
trace-cmd report. No target is needed; the file may come from another machine.`

func newReport() *cobra.Command {
	path := defaultFile
	c := &cobra.Command{
		Use:   "report [-i FILE]",
		Short: "print a trace.dat file",
		Long:  reportHelp,
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return printFile(path) },
	}
	c.Flags().StringVarP(&path, "input", "i", defaultFile, "the file")
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
