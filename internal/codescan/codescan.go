// Package codescan says what the code of a target tells beyond one function: who enters a function's middle from
// elsewhere, which functions never return, which must not be probed, who reads return addresses. It gathers what the
// analysis of a function needs.
package codescan

import (
	"strings"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// New makes the Scanner of a target. It does not touch the target.
func New(t target.Target) *Scanner {
	s := &Scanner{t: t, can: t.Capabilities()}
	s.around = arch.Func{Mem: s.constants, NoReturn: s.noReturn, Inside: s.inside, Morestack: s.morestack}
	return s
}

// constants reads the target's memory; what is constant is taken from the object's file.
func (s *Scanner) constants(addr uint64, b []byte) error {
	if m := s.t.Space().ModuleAt(addr); m != nil {
		if x, at := s.text(m.Image), m.Linktime(addr); x.constant(at, len(b)) {
			return x.read(at, b)
		}
	}
	return s.t.Read(addr, b)
}

// inside gives the start of the function that holds an address.
func (s *Scanner) inside(addr uint64) (uint64, bool) {
	m := s.t.Space().ModuleAt(addr)
	if m == nil {
		return 0, false
	}
	fn, _, ok := m.Image.At(m.Linktime(addr))
	if !ok {
		return 0, false
	}
	return m.Runtime(fn.Addr), true
}

// nameAt is the name of the function that begins at an address; "": none does.
func (s *Scanner) nameAt(addr uint64) string {
	m := s.t.Space().ModuleAt(addr)
	if m == nil {
		return ""
	}
	fn, off, ok := m.Image.At(m.Linktime(addr))
	if !ok || off != 0 {
		return ""
	}
	return fn.Name
}

// noReturn says whether a function never returns to its caller.
func (s *Scanner) noReturn(addr uint64) bool {
	name := strings.TrimSuffix(s.nameAt(addr), "@plt")
	name, _, _ = strings.Cut(name, "@")
	return name != "" && (neverReturns(name) || strings.HasPrefix(name, "_ZSt") && strings.Contains(name, "__throw_"))
}

// neverReturns has the functions of the C, C++ and Go libraries that are known not to
// return. One that is missing only makes the analysis follow code that is never run.
func neverReturns(name string) bool {
	switch name {
	case "exit", "_exit", "_Exit", "quick_exit", "abort", "__stack_chk_fail",
		"__assert_fail", "__assert_perror_fail", "__assert", "__fortify_fail", "__chk_fail",
		"__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "__cxa_bad_typeid",
		"__cxa_throw_bad_array_new_length", "__cxa_call_unexpected", "_Unwind_Resume",
		"longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "pthread_exit",
		"err", "errx", "verr", "verrx", "_ZSt9terminatev", "__libc_start_call_main",
		"runtime.gopanic", "runtime.throw", "runtime.fatal", "runtime.goexit", "runtime.Goexit",
		"runtime.panicIndex", "runtime.panicIndexU", "runtime.panicSliceAlen", "runtime.panicSliceAlenU",
		"runtime.panicSliceAcap", "runtime.panicSliceAcapU", "runtime.panicSliceB", "runtime.panicSliceBU",
		"runtime.panicSlice3Alen", "runtime.panicSlice3Acap", "runtime.panicSlice3B", "runtime.panicSlice3C",
		"runtime.panicSliceConvert", "runtime.panicdivide", "runtime.panicshift", "runtime.panicoverflow",
		"runtime.panicmem", "runtime.panicmemAddr", "runtime.panicdottypeE", "runtime.panicdottypeI",
		"runtime.panicnildottype", "runtime.panicwrap", "runtime.panicunsafealignment", "runtime.panicBounds",
		"runtime.panicrangestate", "runtime.panicnil", "runtime.abort", "os.Exit", "runtime.fatalpanic",
		"runtime.fatalthrow", "runtime.unreachableMethod", "runtime.panicunsafeslicelen":
		return true
	}
	return false
}

// morestack says whether a call there makes a Go function start anew.
func (s *Scanner) morestack(addr uint64) bool {
	return strings.HasPrefix(s.nameAt(addr), "runtime.morestack")
}

// text gives the reader of an object's file: one for all targets that have its image, unless its memory changes.
func (s *Scanner) text(im *symbol.Image) *text {
	if s.can.Describer == nil {
		x, _ := symbol.Derive(im, func() (*text, error) { return newText(im, false), nil })
		return x
	}
	s.texts.mu.Lock()
	defer s.texts.mu.Unlock()
	x := s.texts.of[im]
	if x == nil {
		x = newText(im, true)
		if s.texts.of == nil {
			s.texts.of = map[*symbol.Image]*text{}
		}
		s.texts.of[im] = x
	}
	return x
}

func newText(im *symbol.Image, live bool) *text {
	x := &text{im: im, segs: im.Segments(), funcs: im.Funcs(), live: live}
	x.findKept()
	x.windows = make([]window, len(x.segs))
	return x
}
