package amd64

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// Areas of testdata/fuzzexec.c, from a base (0 or highBase), and what lies at fixed places.
const (
	fuzzCode    = 0x10000000
	fuzzNear    = 0x50000000
	fuzzFar     = 0x200000000
	fuzzCodeLen = 0x2000
	fuzzLand    = 0x20000000
	fuzzLandLen = 0x10000
	fuzzData    = 0x30000000
	fuzzDataLen = 0x4000
	fuzzStack   = 0x38000000
	fuzzStkLen  = 0x4000

	fuzzHome    = 0x6b0000000000
	fuzzTables  = fuzzHome + 0x4000
	fuzzActions = fuzzHome + 0x8000
	fuzzRing    = 0x6c0000000000

	fuzzJobs = 256
)

// fuzzJob, fuzzResult and fuzzShared are struct job, result and shared of
// testdata/fuzzexec.c.
type fuzzJob struct {
	Regs          [16]uint64
	Flags, PC     uint64
	Seed, Memory  uint64
	Skip          uint64
	Keep, Scratch uint64
	NPieces       uint64
	Pieces        [8]struct{ To, Off, Len uint64 }
	Tables        [4]uint64
	Blob          [6144]byte
}

type fuzzResult struct {
	Regs                           [16]uint64
	Flags, PC, Sig, Code, Addr, Nr uint64
	CS, Segments, FS, GS           uint64
	Vec                            [5]uint64
	Data, Stack                    uint64
	DataSlot, StackSlot            uint64
	Hits, Traps, All               uint64
}

type fuzzShared struct {
	NJobs, Done, CPU, Base  uint64
	Returns                 uint64
	Fault, Trap, HandlerLen uint64
	RingLen, Hits, Step     uint64
	Head                    uint64
	Handler                 [4000]byte
	Jobs                    [fuzzJobs]fuzzJob
	Results                 [fuzzJobs]fuzzResult
}

// put adds a piece of memory to the job.
func (j *fuzzJob) put(to uint64, b []byte) error {
	var off uint64
	if n := j.NPieces; n > 0 {
		off = j.Pieces[n-1].Off + j.Pieces[n-1].Len
	}
	if j.NPieces == uint64(len(j.Pieces)) || off+uint64(len(b)) > uint64(len(j.Blob)) {
		return fmt.Errorf("%d bytes more do not fit into a job", len(b))
	}
	copy(j.Blob[off:], b)
	j.Pieces[j.NPieces].To, j.Pieces[j.NPieces].Off, j.Pieces[j.NPieces].Len = to, off, uint64(len(b))
	j.NPieces++
	return nil
}

// fuzzRunner is a child that runs jobs, made anew when one has killed it.
type fuzzRunner struct {
	exe    string
	writer arch.CodegenEnv
	cpu    int
	base   uint64 // of the areas
	single bool   // one instruction is looked at: what is branched to does not return

	mu      sync.Mutex
	cmd     *exec.Cmd
	mem     []byte
	shared  *fuzzShared
	command io.WriteCloser
	reply   *os.File
}

// newFuzzRunners builds the program for the two bases that a case may have; it is started when
// there is something to run.
func newFuzzRunners(t testing.TB) [2]*fuzzRunner {
	t.Helper()
	low := newFuzzRunner(t)
	high := &fuzzRunner{exe: low.exe, writer: low.writer, cpu: low.cpu, base: highBase}
	t.Cleanup(high.stop)
	return [2]*fuzzRunner{low, high}
}

func newFuzzRunner(t testing.TB) *fuzzRunner {
	t.Helper()
	dir := t.TempDir()
	r := &fuzzRunner{exe: filepath.Join(dir, "fuzzexec")}
	cmd := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fno-stack-protector", "-fcf-protection=none", "-mno-sse",
		"-nostdlib", "-static", "-no-pie", "-Wl,-Ttext-segment=0x6a0000000000", "-Wl,-z,noexecstack", "-o", r.exe, "testdata/fuzzexec.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc is needed (package gcc): %v\n%s", err, out)
	}
	r.cpu = lastCPU(t)
	l, err := ring.NewLayout(ring.Config{CPUs: r.cpu + 1, Events: 8, DataSize: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	r.writer = arch.CodegenEnv{Ring: fuzzRing, Layout: l, TID: arch.TIDThread, TIDOff: 0x40, Features: hostRDPID(t), PlainLoads: true}
	t.Cleanup(r.stop)
	return r
}

// lastCPU is a CPU that this process may use.
func lastCPU(t testing.TB) int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for i := 63; i >= 0; i-- {
		if set.IsSet(i) {
			return i
		}
	}
	t.Fatal("no CPU below 64 is allowed")
	return 0
}

// start makes the child.
func (r *fuzzRunner) start() error {
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "fuzz")
	defer file.Close()
	size := int(unsafe.Sizeof(fuzzShared{}))
	if err := file.Truncate(int64(size)); err != nil {
		return err
	}
	if r.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	r.shared = (*fuzzShared)(unsafe.Pointer(&r.mem[0]))
	if err := r.describe(); err != nil {
		return err
	}
	return r.launch(file)
}

// describe tells the child what it runs beside the jobs.
func (r *fuzzRunner) describe() error {
	const actionSize, actionHandler = 40, 8
	h, err := NewHandler(fuzzHome, HandlerEnv{
		Faults: fuzzTables, Traps: fuzzTables + 16, Actions: fuzzActions, Hooked: fuzzTables + 24,
		ActionSize: actionSize, ActionHandler: actionHandler, Resumes: true,
	})
	if err != nil {
		return err
	}
	s, l := r.shared, r.writer.Layout
	if !r.single {
		s.Returns = 1
	}
	shard := fuzzRing + l.ShardOff(l.Locked(r.cpu))
	s.CPU, s.Base, s.RingLen, s.Head = uint64(r.cpu), r.base, l.Size(), shard+ring.ShHead
	s.Hits, s.Step = shard+l.CounterOff(0)+ring.CtrHits, ring.CounterSize
	s.Fault, s.Trap, s.HandlerLen = h.Entry, h.Trap, uint64(copy(s.Handler[:], h.Code))
	if len(h.Code) > len(s.Handler) {
		return fmt.Errorf("the handler takes %d bytes", len(h.Code))
	}
	return nil
}

func (r *fuzzRunner) launch(file *os.File) error {
	fd, err := unix.MemfdCreate("fuzzcode", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("fuzzcode", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return err
	}
	code := os.NewFile(uintptr(fd), "fuzzcode")
	defer code.Close()
	if err := code.Truncate(3 * fuzzCodeLen); err != nil {
		return err
	}
	commandR, commandW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer commandR.Close()
	replyR, replyW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer replyW.Close()
	r.cmd = exec.Command(r.exe)
	r.cmd.ExtraFiles = []*os.File{file, commandR, replyW, code}
	r.command, r.reply = commandW, replyR
	return r.cmd.Start()
}

// stop ends the child.
func (r *fuzzRunner) stop() {
	if r.cmd == nil {
		return
	}
	r.command.Close()
	r.reply.Close()
	r.cmd.Process.Kill()
	r.cmd.Wait()
	unix.Munmap(r.mem)
	r.cmd, r.shared, r.mem = nil, nil, nil
}

// fuzzTimeout is far beyond what the jobs of a call take on a busy machine.
const fuzzTimeout = time.Minute

// run executes jobs. dead is the one that has ended the child or hung, -1 if none did; there
// are results of those before it.
func (r *fuzzRunner) run(jobs []*fuzzJob) (results []fuzzResult, dead int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(jobs) > fuzzJobs {
		return nil, 0, fmt.Errorf("%d jobs at once, at most %d are possible", len(jobs), fuzzJobs)
	}
	if r.cmd == nil {
		if err := r.start(); err != nil {
			return nil, 0, err
		}
	}
	for i, j := range jobs {
		r.shared.Jobs[i] = *j
	}
	r.shared.NJobs, r.shared.Done = uint64(len(jobs)), 0
	if _, err := r.command.Write([]byte{1}); err != nil {
		return nil, 0, fmt.Errorf("the child takes no jobs: %w", err)
	}
	var b [1]byte
	if err := r.reply.SetReadDeadline(time.Now().Add(fuzzTimeout)); err != nil {
		return nil, 0, err
	}
	_, err = r.reply.Read(b[:])
	done := int(r.shared.Done)
	results = slices.Clone(r.shared.Results[:min(done, len(jobs))])
	if err == nil && done == len(jobs) {
		return results, -1, nil
	}
	r.stop()
	return results, done, nil
}

// tables gives what the resident handler finds for the detours of a job.
func (j *fuzzJob) tables(faults []FaultEntry, traps [][2]uint64) error {
	slices.SortFunc(faults, func(x, y FaultEntry) int { return int(int64(x.Lo - y.Lo)) })
	slices.SortFunc(traps, func(x, y [2]uint64) int { return int(int64(x[0] - y[0])) })
	const faultsAt, trapsAt = fuzzTables + 0x100, fuzzTables + 0x3000
	var b []byte
	for _, e := range faults {
		b = e.Append(b)
	}
	if err := j.put(faultsAt, b); err != nil {
		return err
	}
	b = nil
	for _, e := range traps {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, e[0]), e[1])
	}
	j.Tables = [4]uint64{faultsAt, uint64(len(faults)), trapsAt, uint64(len(traps))}
	return j.put(trapsAt, b)
}
