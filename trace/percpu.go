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

// WriteComms writes saved_cmdlines: the threads that are known, by number, with their names.
func (in *Instance) WriteComms(w io.Writer) error { return in.names.write(w) }
