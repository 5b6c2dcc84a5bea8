package main

import (
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/workload"
)

// newWorkload is the verb by which the command starts itself as a workload.
func newWorkload() *cobra.Command {
	return &cobra.Command{
		Use:    workloadVerb,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return workload.Serve(os.Stdin, os.Stdout, ringBytes) },
	}
}
