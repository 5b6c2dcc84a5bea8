package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/target/process"
)

func newList() *cobra.Command {
	var pid int
	c := &cobra.Command{
		Use:   "list -p PID",
		Short: "list the probes in a process, in the format of kprobes/list",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := needPID(pid); err != nil {
				return err
			}
			return list(pid)
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "the process")
	return c
}

// list shows what stands in a process, from the process's own memory.
func list(pid int) error {
	p, err := process.Open(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	t, err := process.Attach(p, nil)
	if err != nil {
		return err
	}
	l, err := process.FindLeftover(p)
	if err != nil || l == nil {
		return err
	}
	n := &names{t: t}
	for _, s := range l.Sites {
		fmt.Println(listLine(n, s))
	}
	return nil
}

// listLine is a line of kprobes/list (F135, Linux 6.18): address, kind, symbol+offset,
// module, state. The kind is k: what stands at a place is an instruction's probe,
// whatever events are behind it.
func listLine(n *names, s process.Patched) string {
	sym, ok := n.Symbol(s.Addr)
	place := fmt.Sprintf("0x%x", s.Addr)
	if ok {
		place = fmt.Sprintf("%s+0x%x", sym.Name, sym.Off)
	}
	module := sym.Module
	if module == "" {
		module = " "
	}
	return fmt.Sprintf("%x  k  %s  %s [OPTIMIZED]", s.Addr, place, module)
}

func newDetach() *cobra.Command {
	var pid int
	var force bool
	c := &cobra.Command{
		Use:   "detach -p PID",
		Short: "take everything out of a process that an earlier kprobe left in it",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := needPID(pid); err != nil {
				return err
			}
			return detach(pid, force)
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "the process")
	c.Flags().BoolVar(&force, "force", false, "also if the kprobe that holds it still runs")
	return c
}

// detach undoes what a tracer that is gone has left.
func detach(pid int, force bool) error {
	p, err := process.Open(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	var held *process.HeldError
	if err := p.Lock(); err != nil && (!errors.As(err, &held) || !force) {
		return err
	}
	l, err := process.FindLeftover(p)
	if err != nil {
		return err
	}
	if l == nil {
		fmt.Fprintf(os.Stderr, "kprobe: process %d holds nothing of ours\n", pid)
		return nil
	}
	u, err := l.Undo()
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "kprobe: process %d: %d sites restored, %d mappings removed\n", pid, u.Restored, u.Pages)
	if len(u.Foreign) > 0 {
		return fmt.Errorf("process %d: %d places hold bytes that are neither the file's nor ours, and were left alone: 0x%x", pid, len(u.Foreign), u.Foreign)
	}
	return nil
}
