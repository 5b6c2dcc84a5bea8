package self

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/symbol"
)

// openImage opens a program's file.
func openImage(tb testing.TB, path string) *symbol.Image {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		tb.Fatal(err)
	}
	im, err := symbol.Open(f, st.Size(), path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return im
}

// loadBias compares where a process's program begins with where its file says.
func loadBias(tb testing.TB, pid int, im *symbol.Image) uint64 {
	tb.Helper()
	const atEntry = 9 // AT_ENTRY
	aux, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for ; len(aux) >= 16; aux = aux[16:] {
		if binary.LittleEndian.Uint64(aux) == atEntry {
			return binary.LittleEndian.Uint64(aux[8:]) - im.Entry()
		}
	}
	tb.Fatalf("/proc/%d/auxv does not tell the program's entry", pid)
	return 0
}

// testSpace is this program.
func testSpace(tb testing.TB) *symbol.Space {
	tb.Helper()
	im := openImage(tb, "/proc/self/exe")
	sp := symbol.NewSpace()
	sp.Add(im, loadBias(tb, os.Getpid(), im), "")
	return sp
}

// onPath must be in every program's signal path, offPath never.
var (
	onPath = []string{
		"runtime.sigtramp", "runtime.sigtrampgo", "runtime.sigfwdgo", "runtime.sighandler",
		"runtime.sigreturn__sigaction", "runtime.adjustSignalStack", "runtime.badsignal",
		"runtime.sigprof", "runtime.tracebackPCs", "runtime.(*unwinder).next", "runtime.findfunc",
		"runtime.pcvalue", "runtime.(*cpuProfile).add", "runtime.(*profBuf).write", "runtime.memmove",
		"runtime.doSigPreempt", "runtime.isAsyncSafePoint", "runtime.(*sigctxt).preparePanic",
		"runtime.sigsend", "runtime.notewakeup", "runtime.futex", "runtime.runPerThreadSyscall",
		"runtime.throw", "runtime.printstring", "runtime.traceback1",
		"runtime.newosproc", "runtime.clone", "runtime.mstart", "runtime.mstart0", "runtime.mstart1",
		"runtime.minit", "runtime.rtsigprocmask", "runtime.sigaltstack", "runtime.systemstack",
		"runtime.needm", "runtime.dropm",
		// A thread's end makes room for another (handoffp) and keeps what it no longer
		// needs (vgetrandomDestroy): it allocates.
		"runtime.mexit", "runtime.exitThread", "runtime.startm", "runtime.allocm", "runtime.mallocgc",
		"runtime.recordspan", "runtime.(*mcache).prepareForSweep",
		"runtime.gcStart", // by mallocgc; returns at once
		// A goroutine that forks is asked to give way, and goes on.
		"runtime.morestack", "runtime.morestack_noctxt", "runtime.newstack", "runtime.gogo",
		// One that makes a thread may need more stack.
		"runtime.funcMaxSPDelta", "runtime.copystack", "runtime.adjustframe", "runtime.stackfree",
	}
	offPath = []string{
		"runtime.mcall", "runtime.gopreempt_m", "runtime.preemptPark",
		"runtime.schedule", "runtime.findRunnable", "runtime.execute", "runtime.gopark", "runtime.goready",
		"runtime.ready", "runtime.gosched_m", "runtime.goexit0", "runtime.newproc", "runtime.asyncPreempt",
		"runtime.sigpanic", "runtime.gopanic", "runtime.deferreturn", "runtime.gcDrain", "runtime.scanstack",
		"runtime.gcBgMarkWorker", "runtime.stopTheWorldWithSema", "runtime.startTheWorldWithSema",
		"runtime.chansend", "runtime.chanrecv", "runtime.mapassign", "runtime.main", "main.main",
	}
)

// pathNames gives the names of the functions on a path.
func pathNames(tb testing.TB, sp *symbol.Space, path map[uint64]string) map[string]string {
	tb.Helper()
	names := map[string]string{}
	for addr, why := range path {
		loc, ok := sp.SymbolAt(addr)
		if !ok || loc.Off != 0 {
			tb.Errorf("0x%x (%s) is no function's entry", addr, why)
		}
		names[loc.Name] = why
	}
	return names
}

// checkPath checks what must be and what must not be on a path.
func checkPath(tb testing.TB, names map[string]string) {
	tb.Helper()
	for _, n := range onPath {
		if names[n] == "" {
			tb.Errorf("%s is not in the signal path", n)
		}
	}
	for _, n := range offPath {
		if why := names[n]; why != "" {
			tb.Errorf("%s is in the signal path: %s", n, why)
		}
	}
}

func TestSignalPath(t *testing.T) {
	sp := testSpace(t)
	path, err := signalPath(sp)
	if err != nil {
		t.Fatal(err)
	}
	names := pathNames(t, sp, path)
	checkPath(t, names)
	for n, want := range map[string]string{
		"runtime.sigtramp":   "the handler of all signals",
		"runtime.sigtrampgo": "called by runtime.sigtramp",
		"runtime.sigprof":    "called by runtime.sighandler ← runtime.sigtrampgo ← runtime.sigtramp",
	} {
		if names[n] != want {
			t.Errorf("%s: %q, want %q", n, names[n], want)
		}
	}
	t.Logf("%d functions", len(path))
	if len(path) > 900 {
		t.Errorf("%d functions: a cut is missing", len(path))
	}
}

// TestSignalPathABI: of a function with an ABI wrapper both are in the path.
func TestSignalPathABI(t *testing.T) {
	sp := testSpace(t)
	path, err := signalPath(sp)
	if err != nil {
		t.Fatal(err)
	}
	im := sp.Main().Image
	fns := slices.DeleteFunc(im.Funcs(), func(fn *symbol.Func) bool { return fn.Name != "runtime.mstart0" })
	if len(fns) != 2 || fns[0].Wrapper == fns[1].Wrapper {
		t.Fatalf("functions runtime.mstart0: %v, want the function and its wrapper", fns)
	}
	for _, fn := range fns {
		if path[sp.Main().Runtime(fn.Addr)] == "" {
			t.Errorf("runtime.mstart0 at 0x%x (wrapper: %v) is not in the signal path", fn.Addr, fn.Wrapper)
		}
	}
}

func TestSignalPathNothingMapped(t *testing.T) {
	if _, err := signalPath(symbol.NewSpace()); err == nil {
		t.Error("no error for an empty address space")
	}
}

// indirectCalls names the functions of the path that call through a register, and what
// they call.
var indirectCalls = map[string]string{
	"runtime.(*fixalloc).alloc":         "pathIndirect",
	"runtime.handoffp":                  "pathIndirect",
	"runtime.systemstack":               "functions whose address its callers take",
	"runtime.retryOnEAGAIN":             "functions whose address its callers take",
	"runtime.(*pageAlloc).find":         "its own closure",
	"runtime.(*pageAlloc).scavenge":     "its own closure",
	"runtime.(*hexdumper).flushLine":    "a closure whose address its caller takes",
	"runtime.hexdumpWords.func1":        "a closure whose address its caller takes",
	"runtime.hexdumpWords":              "a closure whose address its caller takes",
	"runtime.forEachG":                  "a closure whose address its caller takes",
	"runtime.forEachGRace":              "a closure whose address its caller takes",
	"runtime.tracebacksomeothers.func1": "a closure whose address its caller's caller takes",
	"runtime.traceback1":                "its own closures",
	"runtime.clone":                     "mstart, whose address newosproc.func1 takes",
	"runtime.mstart1":                   "m.mstartfn, after minit",
	"runtime.gcStart":                   "not on a system stack",
	"runtime.gcAssistAlloc":             "not on a system stack",
	"runtime.adjustSignalStack":         "a variable",
	"runtime.write":                     "a variable",
	"runtime.sighandler":                "variables, of the runtime's own tests",
	"runtime.cgoSigtramp":               "a variable; C code",
	"runtime.callCgoMmap":               "a variable; C code",
	"runtime.callCgoMunmap":             "a variable; C code",
	"runtime.callCgoSigaction":          "a variable; C code",
	"runtime.callCgoSymbolizer":         "a variable; C code that the program has given",
	"runtime.cgoContextPCs":             "a variable; C code that the program has given",
	"runtime.printOneCgoTraceback":      "a closure",
	"runtime.asmcgocall_landingpad":     "C code, whose address its callers load from variables",
	"runtime.asmcgocall":                "C code, whose address its callers load from variables",
	"runtime.sigfwd":                    "C code: a handler that was there before",
	"runtime.nanotime1":                 "the vDSO",
	"runtime.walltime":                  "the vDSO",
}

// TestSignalPathIndirect finds calls through registers of which nobody has looked what
// they call: a new version of the runtime may have some.
func TestSignalPathIndirect(t *testing.T) {
	sp := testSpace(t)
	path, err := signalPath(sp)
	if err != nil {
		t.Fatal(err)
	}
	for addr := range path {
		loc, _ := sp.SymbolAt(addr)
		code := make([]byte, loc.Size)
		if err := loc.Module.Image.ReadAt(loc.Func.Addr, code); err != nil {
			t.Fatal(err)
		}
		for len(code) > 0 {
			in, err := amd64.Decode(code)
			if err != nil {
				break // signalPath has an opinion on that
			}
			// Jumps through registers are switches, but in assembly.
			indirect := in.Kind == amd64.KindCallInd || in.Kind == amd64.KindJmpInd && loc.Func.Asm
			if indirect && indirectCalls[loc.Name] == "" && strings.HasPrefix(loc.Name, "runtime.") {
				t.Errorf("%s calls through a register or memory: % x", loc.Name, code[:in.Len])
			}
			code = code[in.Len:]
		}
	}
}

// TestSignalPathNames finds names in the tables that no program has any more.
func TestSignalPathNames(t *testing.T) {
	im, own := openImage(t, buildBlocked(t, []string{"CGO_ENABLED=1"})), openImage(t, "/proc/self/exe")
	var names []string
	for _, list := range [][]codescan.SignalFunc{codescan.SignalRoots, codescan.SignalCuts, codescan.SignalLeaves} {
		for _, n := range list {
			names = append(names, n.Name)
		}
	}
	names = append(names, codescan.SignalVariables...)
	for _, c := range codescan.SignalIndirect {
		names = append(append(names, c.Caller), c.Callees...)
	}
	for _, e := range codescan.SignalEdges {
		names = append(names, e.Caller, e.Callee)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		in := im
		if strings.HasPrefix(n, "kprobes.dev/") {
			in = own
		}
		if fns, _ := in.Lookup(n); !slices.ContainsFunc(fns, func(f *symbol.Func) bool { return f.Name == n }) {
			t.Errorf("no function %s", n)
		}
	}
}

// TestSignalPathNewstack: morestack calls newstack by a wrapper for the other ABI, where the linker
// has kept one.
func TestSignalPathNewstack(t *testing.T) {
	sp := testSpace(t)
	path, err := signalPath(sp)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fn := range sp.Main().Image.Funcs() {
		if fn.Name != "runtime.newstack" {
			continue
		}
		if n++; path[sp.Main().Runtime(fn.Addr)] == "" {
			t.Errorf("%s at 0x%x (wrapper: %v) is not in the signal path", fn.Name, fn.Addr, fn.Wrapper)
		}
	}
	if n == 0 {
		t.Error("no newstack")
	}
	t.Logf("%d", n)
}

func BenchmarkSignalPath(b *testing.B) {
	sp := testSpace(b)
	if err := sp.Main().Image.Load(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := signalPath(sp); err != nil {
			b.Fatal(err)
		}
	}
}
