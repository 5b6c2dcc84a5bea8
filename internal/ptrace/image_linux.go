package ptrace

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Image tells one program that a process runs from the next: both change with exec.
type Image struct {
	Exe        procfs.FileID // of the program's file, as stat tells it
	StartCode  uint64
	StartStack uint64
	StartBrk   uint64
}

// checkExe refuses programs of another machine.
func (p *Process) checkExe() error {
	var f *os.File
	err := p.atExe(func(name string) (err error) {
		f, err = p.OpenAt(name, unix.O_RDONLY|unix.O_NONBLOCK)
		return err
	})
	if err != nil {
		return p.exeError(err)
	}
	defer f.Close()
	var h [20]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return fmt.Errorf("%w: program file: %w", ErrUnsupported, err)
	}
	class, machine := elf.Class(h[elf.EI_CLASS]), elf.Machine(le.Uint16(h[18:]))
	if string(h[:4]) != elf.ELFMAG {
		return fmt.Errorf("%w: program file is not ELF", ErrUnsupported)
	}
	return checkMachine(class, machine)
}

// atExe calls f with the name of the link to the program's file. Where the thread that has it ends meanwhile f is called again, with the link of another.
func (p *Process) atExe(f func(name string) error) error {
	for end := time.Now().Add(endTime); ; time.Sleep(time.Millisecond) {
		err := f(p.FileName("exe"))
		if !errors.Is(err, unix.ENOENT) || !p.hasMemory() || time.Now().After(end) {
			return err
		}
	}
}

// exeError says why there is no program file. A process that ends has none, while some of its threads still have memory.
func (p *Process) exeError(err error) error {
	switch {
	case p.CheckAlive() != nil:
		return ErrNoProcess
	case errors.Is(err, unix.EACCES):
		return p.denied("reading its program file")
	case errors.Is(err, unix.ENOENT) && p.hasMemory() && !procfs.Ending(p.pid):
		return fmt.Errorf("%w: it has no program file", ErrUnsupported)
	case errors.Is(err, unix.ENOENT):
		return ErrNoProcess
	}
	return fmt.Errorf("program file: %w", err)
}

// readImage asks which program the process runs.
func (p *Process) readImage() (Image, error) {
	var st unix.Stat_t
	err := p.atExe(func(name string) error { return unix.Fstatat(int(p.dir.Fd()), name, &st, 0) })
	if err != nil {
		return Image{}, p.exeError(err)
	}
	name := "stat"
	if tid := p.liveTask(); tid != 0 {
		name = fmt.Sprintf("task/%d/stat", tid)
	}
	s, err := p.statFile(name)
	if err != nil {
		return Image{}, err
	}
	return Image{
		Exe: FileID(&st), StartCode: s.StartCode, StartStack: s.StartStack, StartBrk: s.StartBrk,
	}, nil
}

// settledImage is readImage. In the second half of an exec the program's file is the new one already, and the addresses follow: it waits for them, up to
// settleTime.
func (p *Process) settledImage() (Image, error) {
	for end := time.Now().Add(settleTime); ; time.Sleep(time.Millisecond) {
		i, err := p.readImage()
		settled := i.StartCode != 0 && i.StartStack != 0 && i.StartBrk != 0
		if err != nil || settled || !p.hasMemory() || time.Now().After(end) {
			return i, err
		}
	}
}

// settleTime bounds the wait for the end of an exec: a busy machine gives a thread its turn late.
const settleTime = 10 * time.Second

// Image says which program the process ran at Open.
func (p *Process) Image() Image { return p.image }

// CheckImage fails with ErrExec if the process has executed another program since Open,
// and with ErrNoProcess if it has ended.
func (p *Process) CheckImage() error {
	if err := p.CheckAlive(); err != nil {
		return fmt.Errorf("process %d: %w", p.pid, err)
	}
	var b [1]byte
	if n, err := unix.Pread(int(p.mem.Fd()), b[:], int64(p.image.StartStack)); n == 0 && err == nil {
		return fmt.Errorf("process %d: %w", p.pid, p.lost())
	}
	now, err := p.readImage()
	for end := time.Now().Add(endTime); err == nil && now.StartStack == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // the thread that was asked is about to end: its memory is gone
		now, err = p.readImage()
	}
	switch {
	case err != nil:
	case now.StartStack == 0:
		err = ErrNoProcess
	case now != p.image:
		err = ErrExec
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.pid, err)
	}
	return nil
}

// endTime bounds the wait for a thread without memory to be gone.
const endTime = 50 * time.Millisecond

// lost says what has become of memory that answers nothing any more.
func (p *Process) lost() error {
	if !p.Alive() || !p.hasMemory() {
		return ErrNoProcess
	}
	return ErrExec
}

// hasMemory says whether a thread still has memory. While a process dies its threads give
// it up before they are gone.
func (p *Process) hasMemory() bool {
	tids, err := p.Tasks()
	if err != nil {
		return false
	}
	for _, tid := range tids {
		if size, err := procFile(p.dir, fmt.Sprintf("task/%d/statm", tid)); err == nil && !strings.HasPrefix(size, "0 ") {
			return true
		}
	}
	return false
}
