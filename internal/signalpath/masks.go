package signalpath

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"kprobes.dev/kprobes/arch/amd64"
	"kprobes.dev/kprobes/symbol"
)

// A Go program without C changes signal masks in its runtime alone: each thread that runs Go code has SIGSEGV and
// SIGBUS open (minitSignalMask, runtime/signal_unix.go), but for the functions that Walk finds. Unless the program
// makes the system call itself.

// sysRtSigprocmask is the number of that system call.
const sysRtSigprocmask = 14

// Masks says why the program may change its threads' signal masks elsewhere than in Go's runtime; nil: it does not.
// mod is its only object. read reads the process's memory.
func Masks(mod *symbol.Module, read func(addr uint64, buf []byte) error) error {
	im := mod.Image
	m := &masks{mod: mod, entries: map[uint64]*symbol.Func{}}
	for _, fn := range im.Funcs() {
		switch base := fn.Name[strings.LastIndexByte(fn.Name, '.')+1:]; {
		case fn.Lang != symbol.LangGo:
			return fmt.Errorf("%s is not Go's", fn)
		case strings.HasPrefix(fn.Name, "runtime."):
		case strings.EqualFold(base, "rtSigprocmask"), strings.EqualFold(base, "PthreadSigmask"):
			return fmt.Errorf("%s changes signal masks", fn)
		case isSyscall(fn.Name):
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

type masks struct {
	mod     *symbol.Module
	entries map[uint64]*symbol.Func // functions that make the system call that they are told
}

// syscalls are the names of functions that make the system call whose number they are given, in the standard library and in
// golang.org/x/sys. Another one makes the call itself, or gives one of these a number that is not known.
var syscalls = []string{
	"Syscall", "Syscall6", "SyscallNoError", "RawSyscall", "RawSyscall6", "RawSyscallNoError", "rawSyscallNoError",
	"rawVforkSyscall", "AllThreadsSyscall", "AllThreadsSyscall6",
}

func isSyscall(name string) bool {
	return slices.Contains(syscalls, name[strings.LastIndexByte(name, '.')+1:])
}

// isLibrary says whether a function is of the packages of the standard library that make system calls: beside the
// runtime none of them changes signal masks.
func isLibrary(name string) bool {
	return slices.ContainsFunc([]string{"runtime.", "syscall.", "internal/", "os.", "net."}, func(p string) bool { return strings.HasPrefix(name, p) })
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
	for _, in := range amd64.FindTaskInsts(code, addr, bounds) {
		fn, _, ok := im.At(in.Addr)
		switch {
		case !ok:
			return fmt.Errorf("0x%x makes system calls, and is in no function", in.Addr)
		case strings.HasPrefix(fn.Name, "runtime.") || in.Number >= 0 && in.Number != sysRtSigprocmask:
		case in.Number == sysRtSigprocmask || !isSyscall(fn.Name):
			return fmt.Errorf("%s makes system calls of its own", fn)
		}
	}
	for i := 0; i+5 <= len(code); i++ {
		if code[i]&^1 != 0xe8 { // call, jmp
			continue
		}
		at := addr + uint64(i)
		to := at + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+1:]))))
		callee := m.entries[to]
		if callee == nil {
			continue
		}
		fn, off, ok := im.At(at)
		if !ok || isSyscall(fn.Name) || isLibrary(fn.Name) {
			continue
		}
		first := amd64.RAX // by Go's ABIInternal; its assembly takes it on the stack
		if callee.ABI0 || callee.Asm {
			first = amd64.RSP
		}
		number, known, is := amd64.ConstantAt(code[fn.Addr-addr:min(fn.End()-addr, uint64(len(code)))], fn.Addr, off, first)
		if is && (!known || number == sysRtSigprocmask) {
			return fmt.Errorf("%s may change signal masks, by %s", fn, callee)
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
