package process

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// tidOffsets are the places of the thread id in the thread's control block, from the FS
// base: glibc's struct pthread (nptl/descr.h: 0x2d0 in all versions for x86-64 since
// 2.4), musl's struct pthread (0x30 since 1.1.20).
var tidOffsets = []int32{0x2d0, 0x30}

// learn finds out what generated code needs to know of the process. Precondition: the
// world is stopped.
func (t *Target) learn(s *ptrace.Stopped) error {
	threads := s.Threads()
	if len(threads) == 0 {
		return fmt.Errorf("process %d has no thread left", t.p.PID())
	}
	t.writer.Features = native.Features()
	if err := refuseNoTSC(s); err != nil {
		return err
	}
	why, err := t.whyNotCall(s, "ask for its name (prctl)", nameCalls)
	if err != nil {
		return err
	}
	t.writer.NoName = why != nil
	g, err := t.findGo(threads)
	if err != nil {
		return err
	}
	if g != nil {
		t.golang = g
		t.writer.Go = &g.runtime
		t.writer.TID = arch.TIDGo
		t.useMasks()
		return t.learnFaults(s)
	}
	err = s.Do(func() error {
		t.learnRseq(threads)
		return nil
	})
	if err != nil {
		return err
	}
	t.learnTID(s, threads)
	if err := t.useBlocks(s); err != nil {
		return err
	}
	return t.learnFaults(s)
}

// refuseNoTSC refuses a process that forbids itself the time stamp counter
// (PR_SET_TSC): reading it would kill it.
func refuseNoTSC(s *ptrace.Stopped) error {
	calls := []ptrace.Syscall{{Nr: unix.SYS_PRCTL, Args: [6]uint64{unix.PR_GET_TSC}, Data: make([]byte, 8), DataArg: 1}}
	if err := s.CallAll(calls); err != nil {
		return err
	}
	if calls[0].Err == nil && binary.LittleEndian.Uint32(calls[0].Data) == unix.PR_TSC_SIGSEGV {
		return errno.Errorf(unix.EOPNOTSUPP, "process %d forbids reading the time stamp counter (PR_SET_TSC), which records need", s.Process().PID())
	}
	return nil
}

// learnRseq asks the kernel where the threads have registered their restartable
// sequences. It must be at one offset from the FS base in all of them. It must run on the tracer's thread.
func (t *Target) learnRseq(threads []*ptrace.Thread) {
	var off int64
	for i, th := range threads {
		c, err := th.Rseq()
		if err != nil || c.Pointer == 0 || c.Signature != native.RseqSignature || th.ThreadPointer() == 0 {
			return
		}
		o := int64(c.Pointer - th.ThreadPointer())
		if i > 0 && o != off || o != int64(int32(o)) {
			return
		}
		off = o
	}
	t.writer.HasRseq, t.writer.RseqOff = true, int32(off)
}

// learnTID looks for the thread id in the threads' control blocks: at an offset where
// every thread has its own.
func (t *Target) learnTID(s *ptrace.Stopped, threads []*ptrace.Thread) {
	for _, off := range tidOffsets {
		if t.tidAt(s, threads, off) {
			t.writer.TID, t.writer.TIDOff = arch.TIDThread, off
			return
		}
	}
	t.writer.TID = arch.TIDSyscall
}

// tidAt says whether every thread has its id at an offset from its FS base.
func (t *Target) tidAt(s *ptrace.Stopped, threads []*ptrace.Thread, off int32) bool {
	ids := make([]interval.Range, len(threads))
	for i, th := range threads {
		if th.ThreadPointer() == 0 {
			return false
		}
		at := th.ThreadPointer() + uint64(off)
		ids[i] = interval.Range{Start: at, End: at + 4}
	}
	all := 0
	err := s.ReadRanges(ids, func(i int, _ uint64, b []byte) error {
		if t.isIDOf(threads[i], b) {
			all++
		}
		return nil
	})
	return err == nil && all == len(threads)
}

// isIDOf says whether b holds the thread's id, as its own pid namespace has it.
func (t *Target) isIDOf(th *ptrace.Thread, b []byte) bool {
	st, err := t.statusOf(th)
	return err == nil && len(b) == 4 && int(binary.LittleEndian.Uint32(b)) == innermost(st.NSTID, th.TID)
}

// statusOf is a thread's status as it was before the stop, or, of one that is newer, as it is: what is
// asked of it does not change, or is checked by other means.
func (t *Target) statusOf(th *ptrace.Thread) (*procfs.Status, error) {
	if st := t.before[th.TID]; st != nil {
		return st, nil
	}
	return th.Status()
}

// innermost is the thread's id in its own pid namespace: the last one of NSpid.
func innermost(ids []int, tid int) int {
	if len(ids) == 0 {
		return tid
	}
	return ids[len(ids)-1]
}

// nameCalls is the question for the thread's name, for $comm.
var nameCalls = []ptrace.CallData{ptrace.CallOf(unix.SYS_PRCTL, [6]uint64{unix.PR_GET_NAME}, 1, 2, 3, 4, 5)}

// RecordsComm says that records may hold the name that the thread has at the hit.
func (t *Target) RecordsComm() bool { return true }
