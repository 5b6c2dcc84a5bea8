package codescan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/symbol"
)

// A Go program without C changes signal masks and handlers in its runtime alone: each thread that runs Go code has
// SIGSEGV and SIGBUS open (minitSignalMask, runtime/signal_unix.go), but for the functions that SignalPath finds, and the
// runtime's handlers stay (os/signal takes neither signal). Unless the program makes the system calls itself.

// changes says whether a system call changes masks or handlers: rt_sigaction and rt_sigprocmask.
func changes(number int64) bool { return number == 13 || number == 14 }

// ChangesMasks says why the program may change its threads' signal masks, or handlers of signals, elsewhere than in Go's
// runtime; nil: it does not.
// The dynamic linker, which a position-independent program is started by, is the only other object that it may have: nobody
// calls it any more once the program runs. read reads the process's memory.
func ChangesMasks(sp *symbol.Space, read func(addr uint64, buf []byte) error) error {
	mod := sp.Main()
	if mod == nil {
		return errors.New("the program's own file is not known")
	}
	im := mod.Image
	for _, o := range sp.Modules() {
		if linker := path.Base(im.Interp()); o != mod && o.Name != linker && o.Image.Soname() != linker {
			return fmt.Errorf("%s is C code", o.Name)
		}
	}
	return (&masks{mod: mod}).find(read)
}

// ChangesMasksInGo is ChangesMasks for a program with C code: nil says that its Go code changes neither masks nor handlers, and that the C code which is linked
// into its own file changes no handlers by system calls of its own. Of masks, and of C code in objects of their own, it says nothing.
func ChangesMasksInGo(sp *symbol.Space, read func(addr uint64, buf []byte) error) error {
	mod := sp.Main()
	if mod == nil {
		return errors.New("the program's own file is not known")
	}
	for _, o := range sp.Modules() {
		if o != mod && o.Image.IsGo() {
			return fmt.Errorf("%s has Go code too", o.Name)
		}
	}
	for _, fn := range mod.Image.Funcs() {
		if slices.Contains(calledDirectly, fn.Name) {
			return fmt.Errorf("%s calls C code", fn)
		}
	}
	return (&masks{mod: mod, foreign: func(fn *symbol.Func, number int64) error {
		if number < 0 || number == unix.SYS_RT_SIGACTION {
			return fmt.Errorf("%s may change handlers of signals", fn)
		}
		return nil
	}}).find(read)
}

// calledDirectly are the functions by which Go calls the C code of the detectors without counting it.
var calledDirectly = []string{"runtime.racecall", "runtime.msancall", "runtime.asancall"}

// find says why the program may change masks or handlers.
func (m *masks) find(read func(addr uint64, buf []byte) error) error {
	im := m.mod.Image
	m.entries = map[uint64]*symbol.Func{}
	for _, fn := range im.Funcs() {
		switch {
		case fn.Lang != symbol.LangGo && m.foreign == nil:
			return fmt.Errorf("%s is not Go's", fn)
		case fn.Lang != symbol.LangGo:
		case strings.HasPrefix(fn.Name, "runtime."):
		case isMasker(base(fn.Name)), isSyscall(fn.Name):
			m.entries[fn.Addr] = fn
		}
	}
	for _, r := range im.TextRanges() {
		code := make([]byte, r.End-r.Start)
		if err := im.ReadAt(r.Start, code); err != nil {
			return err
		}
		if err := m.calls(code, r.Start); err != nil {
			return err
		}
	}
	return m.values(read)
}

// harmless are functions that change signal masks or handlers and are known: why a fault is caught all the same.
var harmless = []SignalFunc{
	{"kprobes.dev/kprobes/target/self.setMask", "SignalRoots has what runs meanwhile"},
	{"kprobes.dev/kprobes/target/self.setSigaction", "its handlers catch the faults"},
	{"kprobes.dev/kprobes/target/self.sigactionOf", "changes nothing"},
	{"kprobes.dev/kprobes/target/process.undisturbed", "leaves SIGSEGV and SIGBUS open"},
	{"github.com/cilium/ebpf/internal/sys.maskProfilerSignal", "blocks SIGPROF only"},
	{"github.com/cilium/ebpf/internal/sys.unmaskProfilerSignal", "unblocks SIGPROF only"},
}

// isMasker says whether a function of that name, without its package's, is golang.org/x/sys's that changes signal masks.
func isMasker(base string) bool {
	return strings.EqualFold(base, "rtSigprocmask") || strings.EqualFold(base, "PthreadSigmask")
}

type masks struct {
	mod *symbol.Module
	// foreign says why a system call of C code, by its number, may change handlers; nil: there is to be no C code.
	foreign func(fn *symbol.Func, number int64) error
	entries map[uint64]*symbol.Func // functions that make the system call that they are told, and those that change masks
}

// syscalls are the names of functions that make the system call whose number they are given, in the standard library and in
// golang.org/x/sys. Another one makes the call itself, or gives one of these a number that is not known.
var syscalls = []string{
	"Syscall", "Syscall6", "SyscallNoError", "RawSyscall", "RawSyscall6", "RawSyscallNoError", "rawSyscallNoError",
	"rawVforkSyscall", "AllThreadsSyscall", "AllThreadsSyscall6",
}

func isSyscall(name string) bool { return slices.Contains(syscalls, base(name)) }

// base is a function's name without its package's.
func base(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// isLibrary says whether a function is of golang.org/x/sys, or of the packages of the standard library that make system
// calls: beside the runtime, and the functions of isMasker, none of them changes signal masks or handlers.
func isLibrary(name string) bool {
	return slices.ContainsFunc([]string{"runtime.", "syscall.", "internal/", "os.", "net.", "golang.org/x/sys/unix."}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// calls looks at all system calls in code at addr, and at all calls of functions that make them.
func (m *masks) calls(code []byte, addr uint64) error {
	im := m.mod.Image
	bounds := func(vaddr uint64) (lo, hi uint64, ok bool) {
		fn, _, ok := im.At(vaddr)
		if !ok {
			return 0, 0, false
		}
		return fn.Addr, fn.End(), true
	}
	for _, in := range native.FindTaskInsts(code, addr, bounds) {
		fn, _, ok := im.At(in.Addr)
		switch {
		case !ok:
			return fmt.Errorf("0x%x makes system calls, and is in no function", in.Addr)
		case fn.Lang != symbol.LangGo: // there are some with C code alone
			if err := m.foreign(fn, in.Number); err != nil {
				return err
			}
		case strings.HasPrefix(fn.Name, "runtime.") || in.Number >= 0 && !changes(in.Number):
		case changes(in.Number) || !isSyscall(fn.Name):
			return fmt.Errorf("%s makes system calls of its own", fn)
		}
	}
	for i, to := range native.Branches(code, addr) {
		callee := m.entries[to]
		if callee == nil {
			continue
		}
		fn, off, ok := im.At(addr + uint64(i))
		if !ok || has(harmless, fn.Name) || isMasker(base(fn.Name)) {
			continue
		}
		if isMasker(base(callee.Name)) {
			return fmt.Errorf("%s changes signal masks, by %s", fn, callee)
		}
		if isSyscall(fn.Name) || isLibrary(fn.Name) {
			continue
		}
		number, known, is := native.ConstantArg(code[fn.Addr-addr:min(fn.End()-addr, uint64(len(code)))], fn.Addr, off, callee.ABI0 || callee.Asm)
		if is && (!known || changes(number)) {
			return fmt.Errorf("%s may change signal masks or handlers, by %s", fn, callee)
		}
	}
	return nil
}

// values looks for func values of functions that make system calls: who calls them is not known.
func (m *masks) values(read func(addr uint64, buf []byte) error) error {
	for _, s := range m.mod.Image.Segments() {
		if s.Exec {
			continue
		}
		b := make([]byte, s.Filesz)
		if err := read(m.mod.Runtime(s.Vaddr), b); err != nil {
			return err
		}
		for ; len(b) >= 8; b = b[8:] {
			if fn := m.entries[m.mod.Linktime(binary.LittleEndian.Uint64(b))]; fn != nil {
				return fmt.Errorf("%s is called through a variable", fn)
			}
		}
	}
	return nil
}
