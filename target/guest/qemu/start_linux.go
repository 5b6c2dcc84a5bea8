package qemu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// StartOptions are a machine to be started. Kernel is needed; all else has a default.
type StartOptions struct {
	Kernel   string // a kernel image that QEMU can boot: bzImage, or a vmlinux with a PVH note
	Initrd   string // initial RAM disk; "" is none
	Append   string // the kernel's command line; "" is console=ttyS0
	Memory   int    // RAM in MB; 0 is 256
	CPUs     int    // vCPUs; 0 is 1
	CPUModel string // as -cpu takes it; "" is qemu64, or host with kvm
	Accel    string // tcg or kvm; "" is tcg
	// OneThread has one thread of QEMU emulate all vCPUs in turn. With a thread for each QEMU
	// 7.2 now and then keeps executing code that the guest itself has changed: a vCPU takes
	// a breakpoint for ever that its kernel has long removed (text_poke, for its function
	// tracer and its jump labels).
	OneThread bool
	Dir       string // for the sockets, made if need be; "" is a new directory for temporary files
	Icount    bool   // tcg counts instructions: the guest's clock and TSC advance by one for each
	Ring      int    // MB of the ivshmem device's memory, a power of two; 0 is 32, -1 no device
	SerialLog string // file for what the guest writes to its first serial port; "" is serial.log in Dir
	Extra     []string
	QEMU      string // the program; "" is qemu-system-x86_64
}

const (
	defaultMemory = 256
	defaultRing   = 32
	mega          = 1 << 20
	// startWait is how long QEMU may take until its monitor answers. It does so before the
	// guest runs.
	startWait = 60 * time.Second
)

// Start starts a QEMU that outlives this process, and returns when its monitor answers: the
// guest has hardly begun to boot then. End ends it. Errors show what QEMU has to say.
func Start(o *StartOptions) (Spec, error) {
	l, err := newLaunch(*o)
	if err != nil {
		return Spec{}, err
	}
	if err := l.makeDir(); err != nil {
		return Spec{}, err
	}
	if err := l.start(); err != nil {
		l.undo()
		return Spec{}, err
	}
	return l.rec.spec(l.o.Dir)
}

// launch is a QEMU that is being started.
type launch struct {
	o    StartOptions
	rec  record
	cmd  *exec.Cmd
	done chan struct{} // closed when QEMU has ended
}

func newLaunch(o StartOptions) (*launch, error) {
	if o.Kernel == "" {
		return nil, errno.Errorf(unix.EINVAL, "start of a guest: which kernel is missing")
	}
	for _, f := range []string{o.Kernel, o.Initrd} {
		if f == "" {
			continue
		}
		if err := unix.Access(f, unix.R_OK); err != nil {
			return nil, fmt.Errorf("start of a guest: %s: %w", f, err)
		}
	}
	setDefault(&o.Append, "console=ttyS0")
	setDefault(&o.Accel, "tcg")
	setDefault(&o.QEMU, "qemu-system-x86_64")
	setDefault(&o.CPUModel, map[bool]string{true: "host", false: "qemu64"}[o.Accel == "kvm"])
	setDefault(&o.Memory, defaultMemory)
	setDefault(&o.CPUs, 1)
	setDefault(&o.Ring, defaultRing)
	switch {
	case o.Memory < 16 || o.Memory > 1<<20:
		return nil, errno.Errorf(unix.EINVAL, "start of a guest: %d MB of memory: 16 MB to 1 TB", o.Memory)
	case o.CPUs < 1 || o.CPUs > 255:
		return nil, errno.Errorf(unix.EINVAL, "start of a guest: %d vCPUs: 1 to 255", o.CPUs)
	case o.Ring != -1 && (o.Ring < 1 || o.Ring > 1024 || o.Ring&(o.Ring-1) != 0):
		return nil, errno.Errorf(unix.EINVAL, "start of a guest: %d MB for the ring: a power of two up to 1024, or -1", o.Ring)
	case o.Accel != "tcg" && o.Accel != "kvm":
		return nil, errno.Errorf(unix.EINVAL, "start of a guest: accelerator %q: tcg or kvm", o.Accel)
	case o.Icount && o.Accel == "kvm":
		return nil, errno.Errorf(unix.EINVAL, "start of a guest: only tcg counts instructions")
	}
	path, err := exec.LookPath(o.QEMU)
	if err != nil {
		return nil, fmt.Errorf("start of a guest: %w; install it (Debian: apt-get install qemu-system-x86)", err)
	}
	o.QEMU = path
	return &launch{o: o, done: make(chan struct{})}, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (l *launch) start() error {
	if err := l.makeFiles(); err != nil {
		return err
	}
	errs, err := l.exec()
	if err != nil {
		return err
	}
	go func() {
		defer close(l.done)
		_ = l.cmd.Wait() // or it stays a zombie as long as we live
	}()
	if err := l.await(); err != nil {
		said, _ := os.ReadFile(errs)
		return fmt.Errorf("start of a guest: %w: %s", err, strings.TrimSpace(string(said)))
	}
	if l.rec.Started, err = startOf(l.rec.PID); err != nil {
		return err
	}
	return l.rec.write(l.o.Dir)
}

// makeDir makes the directory for the sockets, whose paths are short by necessity.
func (l *launch) makeDir() (err error) {
	if l.o.Dir == "" {
		l.rec.MadeDir = true
		l.o.Dir, err = os.MkdirTemp("", "kprobe-guest-")
		return err
	}
	if l.o.Dir, err = filepath.Abs(l.o.Dir); err != nil {
		return err
	}
	if len(l.path("qmp.sock")) >= maxSocketPath {
		return errno.Errorf(unix.ENAMETOOLONG, "start of a guest: %s: too long for the paths of sockets, which have at most %d bytes: take another directory", l.o.Dir, maxSocketPath-1)
	}
	if _, err := os.Stat(l.path(recordName)); err == nil {
		return errno.Errorf(unix.EEXIST, "start of a guest: %s holds one already; end it: kprobe guest stop %s", l.o.Dir, l.o.Dir)
	}
	if _, err := os.Stat(l.o.Dir); errors.Is(err, unix.ENOENT) {
		l.rec.MadeDir = true
	}
	return os.MkdirAll(l.o.Dir, 0o700)
}

func (l *launch) path(name string) string { return filepath.Join(l.o.Dir, name) }

// makeFiles makes the files of the guest's memory, and names the others.
func (l *launch) makeFiles() (err error) {
	l.rec.QMP, l.rec.GDB = l.own("qmp.sock"), l.own("gdb.sock")
	if l.o.SerialLog == "" {
		l.o.SerialLog = l.own("serial.log")
	}
	if l.rec.Memory, err = l.memory("ram", l.o.Memory); err != nil {
		return err
	}
	if l.o.Ring > 0 {
		l.rec.Ring, err = l.memory("ring", l.o.Ring)
	}
	return err
}

// own is the path of a file in the directory that goes with the guest.
func (l *launch) own(name string) string {
	l.rec.Files = append(l.rec.Files, l.path(name))
	return l.path(name)
}

// memory makes a file of so many MB, in memory where there is such a file system: pages that
// are written to a disk all the time are slow.
func (l *launch) memory(name string, mb int) (string, error) {
	dir := l.o.Dir
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) == nil && st.Type == unix.TMPFS_MAGIC && uint64(st.Bsize)*st.Bavail > uint64(mb)*mega {
		dir = "/dev/shm"
	}
	f, err := os.CreateTemp(dir, "kprobe-guest-"+name+"-") // mode 0600
	if err != nil {
		return "", err
	}
	defer f.Close()
	l.rec.Files = append(l.rec.Files, f.Name())
	return f.Name(), f.Truncate(int64(mb) * mega)
}

// args are QEMU's. No -no-reboot: a guest that reboots is to be noticed, not to end.
func (l *launch) args() []string {
	o := &l.o
	accel := o.Accel
	if accel == "tcg" && !o.Icount {
		accel = "tcg,thread=" + map[bool]string{true: "single", false: "multi"}[o.OneThread]
	}
	a := []string{
		"-machine", "pc,memory-backend=mem", "-accel", accel, "-cpu", o.CPUModel, "-smp", strconv.Itoa(o.CPUs),
		"-m", strconv.Itoa(o.Memory) + "M",
		"-object", fmt.Sprintf("memory-backend-file,id=mem,size=%dM,mem-path=%s,share=on", o.Memory, escape(l.rec.Memory)),
		"-nodefaults", "-display", "none", "-monitor", "none",
		"-qmp", "unix:" + escape(l.rec.QMP) + ",server=on,wait=off",
		"-gdb", "unix:" + escape(l.rec.GDB) + ",server=on,wait=off",
		"-serial", "file:" + o.SerialLog,
		"-kernel", o.Kernel, "-append", o.Append,
	}
	if o.Initrd != "" {
		a = append(a, "-initrd", o.Initrd)
	}
	if l.rec.Ring != "" {
		a = append(a,
			"-object", fmt.Sprintf("memory-backend-file,id=ring,size=%dM,mem-path=%s,share=on", o.Ring, escape(l.rec.Ring)),
			"-device", "ivshmem-plain,memdev=ring")
	}
	if o.Icount {
		a = append(a, "-icount", "shift=0,sleep=off")
	}
	return append(a, o.Extra...)
}

// escape doubles commas, as QEMU's lists of options want it.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// exec starts QEMU in a session of its own, so that no signal of our terminal reaches it. It
// returns the file that takes what QEMU says.
func (l *launch) exec() (errs string, err error) {
	out, err := os.OpenFile(l.own("qemu.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	defer out.Close()
	l.cmd = exec.Command(l.o.QEMU, l.args()...)
	l.cmd.Stdout, l.cmd.Stderr = out, out
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := l.cmd.Start(); err != nil {
		return "", fmt.Errorf("start of a guest: %w", err)
	}
	l.rec.PID = l.cmd.Process.Pid
	return out.Name(), nil
}

// await returns when the monitor answers.
func (l *launch) await() error {
	end := time.Now().Add(startWait)
	for {
		mon, err := dialMonitor(l.rec.QMP, greeting, func(string) {})
		if err == nil {
			mon.close()
			return nil
		}
		select {
		case <-l.done:
			return errno.Errorf(unix.EINVAL, "QEMU has ended: %v", l.cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// undo takes back a start that has failed.
func (l *launch) undo() {
	if l.cmd != nil && l.cmd.Process != nil {
		_ = l.cmd.Process.Kill()
		<-l.done
	}
	_ = l.rec.remove(l.o.Dir)
}

// remove removes what was made for a guest.
func (r *record) remove(dir string) error {
	var errs []error
	for _, f := range r.Files {
		if err := os.Remove(f); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	if r.MadeDir {
		if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// startOf reads when a process was started, in clock ticks since boot (proc_pid_stat(5),
// field 22): with its id it names a process for good. A zombie has ended.
func startOf(pid int) (uint64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return 0, err
	}
	_, after, ok := strings.Cut(string(b), ") ")
	for { // the name may hold what ends it
		_, more, again := strings.Cut(after, ") ")
		if !again {
			break
		}
		after = more
	}
	fields := strings.Fields(after)
	if !ok || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, unix.ESRCH
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
