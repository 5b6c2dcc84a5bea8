package process

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/ptrace"
)

// TreeOptions say what becomes of the processes of a Tree. Its functions must not use the Tree.
type TreeOptions struct {
	// Takes says whether a process, which has just executed its program, is to be handed over.
	Takes func(pid int) bool
	// Met gets such a process, stopped before the first instruction of its program as by MeetExec, and has released it when it returns. Meanwhile
	// nothing else of the tree goes on that has to stop. With an error the process was not stopped, and runs on.
	Met     func(pid int, m Met, err error)
	Loaders *Loaders
}

// Tree is a program that was started, and all processes that descend from it, but for what descends from those that were handed over. It needs no
// privileges. A program with more privileges than its caller (set-user-ID, set-group-ID, file capabilities) runs without them in a tree, unless the tracer
// has CAP_SYS_PTRACE: the kernel grants none under a tracer (ptracer_capable in security/commoncap.c). If the calling program ends the processes run on.
type Tree struct{ t *ptrace.Tree }

// StartTree starts a program, which waits before its first instruction for Run or Kill. Errors are those of Start.
func StartTree(c *Command, o *TreeOptions) (*Tree, error) {
	met := func(pid int, m ptrace.Met, err error) {
		if err != nil {
			o.Met(pid, Met{}, err)
			return
		}
		o.Met(pid, Met{newProc(m.Process), m.Stopped, m.Begun}, nil)
	}
	t, err := ptrace.StartTree(c, ptrace.TreeOptions{Takes: o.Takes, Met: met, Loaders: o.Loaders})
	if err != nil {
		return nil, err
	}
	return &Tree{t}, nil
}

// Run lets the program begin, follows the tree until that has ended, and gives its status. Other processes run on by themselves then. It is called once.
func (t *Tree) Run() (unix.WaitStatus, error) { return t.t.Run() }

// Kill ends a program that has not begun, in place of Run.
func (t *Tree) Kill() error { return t.t.Kill() }
