package ptrace

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// threadFlags make a thread of the process as pthread_create does, but for what the C library knows of its threads.
const threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM |
	unix.CLONE_SETTLS | unix.CLONE_CHILD_CLEARTID

// StartThread lets the target make a thread. It runs at once, though all others stand: it begins with all signals blocked, no alternate stack,
// and registers of the thread that was made to call clone(2). It takes no part in the stop, and may have ended when the call returns. If the
// tracer dies in the middle, the thread is there or is not.
func (s *Stopped) StartThread(n *NewThread) error {
	// The call returns twice, both times by the gadget's return: the new thread finds its way on the new stack.
	sp := n.Stack - 8
	if err := s.p.WriteMem(sp, binary.LittleEndian.AppendUint64(nil, n.Start)); err != nil {
		return err
	}
	if _, err := s.Call(unix.SYS_CLONE, threadFlags, sp, 0, n.Alive, n.Base); err != nil {
		return fmt.Errorf("clone in the target: %w", err)
	}
	return nil
}
