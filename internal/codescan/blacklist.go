package codescan

import (
	"strings"

	"kprobes.dev/kprobes/internal/arch/native"
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
	whyCopied    = "V8 copies its builtins to memory near the code that it generates, and runs them there: a jump would lead nowhere in the copy, and a probe in the original would see no call"
	whyVDSO      = "the page is the kernel's and is shared by all processes"
)

// FuncDenied says why the function at a resolved place must not be probed, by its names, by its code, or because the target
// says so; "": it may.
func (s *Scanner) FuncDenied(r symbol.Resolved) (why string) {
	why = nameDenied(r.Func)
	if why == "" && s.can.FuncDenied != nil {
		why = s.can.FuncDenied(r)
	}
	switch {
	case why != "":
		return why
	case v8Builtin(r):
		return whyCopied
	case signalReturn(r):
		return whySigreturn
	}
	return ""
}

// ObjectDenied says why nothing may be probed in an object, by its name: the kernel's own; "": it may.
func ObjectDenied(name string) (why string) {
	if strings.HasPrefix(name, "[vdso") || strings.HasPrefix(name, "[vsyscall") || strings.HasPrefix(name, "linux-vdso.so") {
		return whyVDSO
	}
	return ""
}

// nameDenied looks a function's names up.
func nameDenied(fn *symbol.Func) string {
	why := cDenied
	if fn.Lang == symbol.LangGo {
		why = goDenied
	}
	is := why(strings.TrimSuffix(fn.Name, ".abi0"))
	for i := 0; is == "" && i < len(fn.Aliases); i++ {
		is = why(strings.TrimSuffix(fn.Aliases[i], ".abi0"))
	}
	return is
}

// goDenied knows the functions of the Go runtime that must not be probed (asm_*.s, sys_linux_*.s, rt0_linux_*.s and
// signal_unix.go in package runtime, Go 1.23 to 1.26), with the reason. Every other function of the runtime can be
// probed, or is refused for what its code holds: the test of the blacklist arms them all.
func goDenied(name string) (why string) {
	if strings.HasPrefix(name, "_rt0_") {
		return whyStart
	}
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
	case "runtime.rt0_go", "runtime.settls":
		return whyStart
	}
	return ""
}

// cDenied knows the functions of C libraries that must not be probed.
func cDenied(name string) (why string) {
	switch name {
	case "__restore_rt", "__restore": // glibc's, musl's
		return whySigreturn
	}
	return ""
}

// signalReturn says whether a function is what a signal handler returns to. The symbols of such functions are local, so in a
// stripped library only the bytes tell.
func signalReturn(r symbol.Resolved) bool {
	const n = len(native.SignalReturn)
	if r.Func.Size < uint64(n) || r.Func.Size > 2*uint64(n) {
		return false
	}
	code := make([]byte, n)
	return r.Module.Image.ReadAt(r.Func.Addr, code) == nil && string(code) == native.SignalReturn
}

// v8Builtin says whether a function is one of V8's embedded builtins: they are in one block of code, which a
// process copies as a whole (CodeRange::RemapEmbeddedBuiltins; with memcpy where it can not map the file once more).
func v8Builtin(r symbol.Resolved) bool {
	if !strings.HasPrefix(r.Func.Name, "Builtins_") {
		return false
	}
	return len(r.Module.Image.All("Builtins_InterpreterEntryTrampoline")) == 1
}
