package trace

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// CPUs is the number of CPUs that the target runs on.
func (in *Instance) CPUs() int { return in.cpus() }

// WriteCPUTrace is WriteTrace for the records of one CPU.
func (in *Instance) WriteCPUTrace(w io.Writer, cpu int) error { return in.writeTrace(w, in.buf, cpu) }

// ClearCPU forgets the records of one CPU.
func (in *Instance) ClearCPU(cpu int) {
	in.drain()
	in.buf.Clear(cpu)
}

// CPUPipe is Pipe for the records of one CPU.
func (in *Instance) CPUPipe(cpu int) *Pipe { return in.pipe(cpu) }

// WriteCPUStats writes per_cpu/cpuN/stats.
func (in *Instance) WriteCPUStats(w io.Writer, cpu int) error {
	in.drain()
	s, _ := in.buf.Look(cpu)
	now := in.now()
	_, err := fmt.Fprintf(w, "entries: %d\noverrun: %d\ncommit overrun: 0\nbytes: %d\noldest event ts: %5d.%06d\nnow ts: %5d.%06d\ndropped events: %d\nread events: %d\n",
		s.Entries, s.Overrun, s.Bytes, s.OldestNs/1e9, s.OldestNs%1e9/1000, now/1e9, now%1e9/1000, s.Dropped, s.Read)
	return err
}

// BufferSize is how many bytes are kept of a CPU. Of AllCPUs: of each; 0: not of all as many.
func (in *Instance) BufferSize(cpu int) int { return in.buf.Size(cpu) }

// maxBuffer is the largest size of a CPU's buffer, in bytes.
const maxBuffer = 1 << 40

// SetBufferSize sets how many bytes are kept of a CPU, or of each (AllCPUs); what is too much of the oldest goes. EINVAL: none, or there is no such CPU; ENOMEM:
// too many.
func (in *Instance) SetBufferSize(cpu, bytes int) error {
	switch {
	case cpu != AllCPUs && (cpu < 0 || cpu >= in.cpus()):
		return errno.Errorf(unix.EINVAL, "there is no CPU %d: there are %d", cpu, in.cpus())
	case bytes <= 0:
		return errno.Errorf(unix.EINVAL, "%d bytes: a buffer keeps some", bytes)
	case bytes > maxBuffer:
		return errno.Errorf(unix.ENOMEM, "%d bytes: a CPU's buffer has at most %d", bytes, maxBuffer)
	}
	in.drain()
	in.buf.SetSize(cpu, bytes)
	return nil
}

// DefaultBufferPercent is what BufferPercent gives at first.
const DefaultBufferPercent = 50

// BufferPercent is how full a CPU's buffer is to be, in percent, before Pipe.Ready says that there is something to read.
func (in *Instance) BufferPercent() int { return int(in.fill.Load()) }

// SetBufferPercent sets it. 0: any record is enough. EINVAL: it is not from 0 to 100.
func (in *Instance) SetBufferPercent(percent int) error {
	if percent < 0 || percent > 100 {
		return errno.Errorf(unix.EINVAL, "%d percent: 0 to 100 is taken", percent)
	}
	in.fill.Store(int32(percent))
	in.buf.Rouse()
	return nil
}

// smallestBuffer is the size to which FreeBuffer makes a CPU's buffer, in bytes: the kernel's has two pages at least.
const smallestBuffer = 2 * 4080

// FreeBuffer is what closing the file free_buffer does: the buffer of each CPU becomes as small as the kernel makes it. With
// OptionDisableOnFree tracing is switched off before.
func (in *Instance) FreeBuffer() {
	in.drain()
	if in.has(OptionDisableOnFree) {
		in.SetTracing(false)
	}
	in.buf.SetSize(AllCPUs, smallestBuffer)
}

// WriteComms writes saved_cmdlines: the threads that are known, by number, with their names.
func (in *Instance) WriteComms(w io.Writer) error { return in.names.write(w) }

// Comms is of how many threads the names are kept: saved_cmdlines_size.
func (in *Instance) Comms() int {
	in.names.mu.Lock()
	defer in.names.mu.Unlock()
	return in.names.most
}

// SetComms sets it, to as many as the kernel makes of that: at least 6,552. EINVAL: none, or more than 32,768.
func (in *Instance) SetComms(threads int) error {
	if threads < 1 || threads > maxComms {
		return errno.Errorf(unix.EINVAL, "%d threads: 1 to %d are taken", threads, maxComms)
	}
	in.names.setMost(threads)
	return nil
}
