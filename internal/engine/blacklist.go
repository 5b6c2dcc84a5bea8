package engine

import (
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
)

// Why functions are on the blacklist.
const (
	whyReturned  = "every goroutine returns to its second byte, which a patch of the first instruction would cover"
	whyMarker    = "it is an address that the runtime looks for on stacks, and never runs"
	whyAnywhere  = "it is entered between any two instructions of other functions: all registers and flags are in use"
	whyMiddle    = "its callers enter it at any of its instructions"
	whySignal    = "it runs on the signal stack while the goroutine that was interrupted counts as the running one: a probe could not tell how much stack there is, nor whose call it is"
	whyStart     = "it runs before its thread has thread-local storage, which a probe reads"
	whySigreturn = "debuggers and unwinders know the frame of a signal handler by these very bytes"
	whyOurs      = "it is code of another probe"
	whyCopied    = "V8 copies its builtins to memory near the code that it generates, and runs them there: a jump would lead nowhere in the copy, and a probe in the original would see no call"
	whyVDSO      = "the page is the kernel's and is shared by all processes"
)

// goBlacklisted knows the functions of the Go runtime that must not be probed (runtime/asm_amd64.s,
// sys_linux_amd64.s, rt0_linux_amd64.s and signal_unix.go, Go 1.23 to 1.26), with the
// reason. Every other function of the runtime can be probed, or is refused for what its
// code holds: the test of the blacklist arms them all.
func goBlacklisted(name string) (why string) {
	switch name {
	case "runtime.goexit":
		return whyReturned
	case "runtime.systemstack_switch":
		return whyMarker
	case "runtime.asyncPreempt":
		return whyAnywhere
	case "runtime.duffzero", "runtime.duffcopy":
		return whyMiddle
	case "runtime.sigtramp", "runtime.cgoSigtramp", "runtime.sigtrampgo", "runtime.sigfwd", "runtime.sigfwdgo", "runtime.sigprofNonGo", "runtime.sigprofNonGoWrapper", "runtime.badsignal":
		return whySignal
	case "runtime.sigreturn__sigaction":
		return whySigreturn
	case "_rt0_amd64", "_rt0_amd64_linux", "_rt0_amd64_lib", "_rt0_amd64_linux_lib", "runtime.rt0_go", "runtime.settls":
		return whyStart
	}
	return ""
}

// cBlacklisted knows the functions of C libraries that must not be probed.
func cBlacklisted(name string) (why string) {
	switch name {
	case "__restore_rt", "__restore": // glibc's, musl's
		return whySigreturn
	}
	return ""
}

// sigreturnCode is how glibc, musl and Go write the code that a signal handler returns to:
// mov $15, %rax; syscall. Their symbols are local, so in a stripped library only the bytes
// tell (gdb's amd64-linux-tdep.c and libgcc's linux-unwind.h look for them too).
var sigreturnCode = []byte{0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}

// blacklisted says why the function at a resolved place must not be probed; nil: it may.
// The error answers EINVAL, as the kernel does for its own blacklist.
func (c *Core) blacklisted(r symbol.Resolved) error {
	why := barred(r.Func)
	if why == "" && c.can.FuncDenied != nil {
		why = c.can.FuncDenied(r)
	}
	if why == "" && c.asked(r) {
		why = whyAsked
	}
	if why == "" && v8Builtin(r) {
		why = whyCopied
	}
	if why == "" && r.Func.Size >= uint64(len(sigreturnCode)) && r.Func.Size <= 2*uint64(len(sigreturnCode)) {
		code := make([]byte, len(sigreturnCode))
		if r.Module.Image.ReadAt(r.Func.Addr, code) == nil && bytes.Equal(code, sigreturnCode) {
			why = whySigreturn
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s is on the blacklist: %s; probe what calls it: %w", r.Func.Pretty(), why, unix.EINVAL)
}

// forbidden says why nothing may be probed where a definition points to, function or not:
// in the kernel's objects, and in generated code.
func (c *Core) forbidden(d *event.Def) error {
	at := d.Place.Addr
	switch {
	case isVDSO(d.Place.Module):
		return fmt.Errorf("%s is on the blacklist: %s: %w", d.Place.Module, whyVDSO, unix.EINVAL)
	case d.Place.Kind == event.PlaceAddr && d.Place.Module == "" && c.generated(at):
		return fmt.Errorf("0x%x is on the blacklist: %s: %w", at, whyOurs, unix.EINVAL)
	}
	return nil
}

// generated says whether an address lies in the code of a probe, which is in no object.
func (c *Core) generated(addr uint64) bool {
	if s := c.space.Load(); s != nil {
		if m := s.ModuleAt(addr); m != nil && m.Image.Executable(m.Linktime(addr)) {
			return false
		}
	}
	for _, f := range c.fns {
		for _, s := range f.sites {
			if addr-s.Detour.Addr < uint64(s.Room) {
				return true
			}
		}
	}
	return false
}

// barred looks a function's names up.
func barred(fn *symbol.Func) string {
	why := cBlacklisted
	if fn.Lang == symbol.LangGo {
		why = goBlacklisted
	}
	is := why(strings.TrimSuffix(fn.Name, ".abi0"))
	for i := 0; is == "" && i < len(fn.Aliases); i++ {
		is = why(strings.TrimSuffix(fn.Aliases[i], ".abi0"))
	}
	return is
}

// v8Builtin says whether a function is one of V8's embedded builtins: they are in one block of code, which a
// process copies as a whole (CodeRange::RemapEmbeddedBuiltins; with memcpy where it can not map the file once more).
func v8Builtin(r symbol.Resolved) bool {
	if !strings.HasPrefix(r.Func.Name, "Builtins_") {
		return false
	}
	_, err := r.Module.Image.Lookup("Builtins_InterpreterEntryTrampoline")
	return err == nil
}

// isVDSO recognises the kernel's own object by its name.
func isVDSO(module string) bool {
	return strings.HasPrefix(module, "[vdso") || strings.HasPrefix(module, "[vsyscall") || strings.HasPrefix(module, "linux-vdso.so")
}

// asked says whether NoKprobe has put the function on the blacklist, or the one it is a
// part of.
func (c *Core) asked(r symbol.Resolved) bool {
	if len(c.barred) == 0 {
		return false
	}
	if _, ok := c.barred[r.Module.Runtime(r.Func.Addr)]; ok {
		return true
	}
	for _, b := range c.barred {
		if r.Func.PartOf != "" && b.Module == r.Module && b.Func.Name == r.Func.PartOf {
			return true
		}
	}
	return false
}

// whyAsked is why a function that NoKprobe was told of is on the blacklist.
const whyAsked = "the program has asked for it (NoKprobe)"
