package trace

import "io"

// Snapshot exchanges what the buffer keeps and what a second buffer does, which is made by the first call: the snapshot.
func (in *Instance) Snapshot() {
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	in.snapshotNow()
}

// snapshotNow is Snapshot where records are being read. Precondition: pollMu is held.
func (in *Instance) snapshotNow() {
	if in.snap == nil {
		in.snap = newBuffer(in.buf.Size(AllCPUs))
	}
	in.buf.Swap(in.snap)
	in.buf.Wake()
}

// ClearSnapshot empties the snapshot; free says that there is to be none any more.
func (in *Instance) ClearSnapshot(free bool) {
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	if in.snap != nil {
		in.snap.Clear(AllCPUs)
	}
	if free {
		in.snap = nil
	}
}

// snapshot is the buffer of the snapshot; nil: there is none.
func (in *Instance) snapshot() *buffer {
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	return in.snap
}

// What the file snapshot says where it has no records (kernel/trace/trace.c, Linux 6.18).
const (
	noSnapshot = `# tracer: nop
#
#
# * Snapshot is freed *
#
# Snapshot commands:
`
	emptySnapshot = `# tracer: nop
#
#
# * Snapshot is allocated *
#
# Snapshot commands:
`
	snapshotHelp = `# echo 0 > snapshot : Clears and frees snapshot buffer
# echo 1 > snapshot : Allocates snapshot buffer, if not already allocated.
#                      Takes a snapshot of the main buffer.
# echo 2 > snapshot : Clears snapshot buffer (but does not allocate or free)
#                      (Doesn't have to be '2' works with any number that
#                       is not a '0' or '1')
`
)

// WriteSnapshot writes the file snapshot: as WriteTrace, what Snapshot has kept, or how one is taken.
func (in *Instance) WriteSnapshot(w io.Writer) error { return in.writeSnapshot(w, AllCPUs) }

// WriteCPUSnapshot is WriteSnapshot for the records of one CPU.
func (in *Instance) WriteCPUSnapshot(w io.Writer, cpu int) error { return in.writeSnapshot(w, cpu) }

func (in *Instance) writeSnapshot(w io.Writer, cpu int) error {
	in.drain() // triggers may take one
	snap := in.snapshot()
	switch {
	case snap == nil:
		_, err := io.WriteString(w, noSnapshot+snapshotHelp)
		return err
	case snap.Waiting(cpu, 0) != nil:
		_, err := io.WriteString(w, emptySnapshot+snapshotHelp)
		return err
	}
	return in.writeTrace(w, snap, cpu)
}
