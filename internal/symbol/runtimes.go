package symbol

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// readingRuntime is software that reads return addresses of code that it did not call: by tables that
// say which frame belongs to which return address, or by the place of the return address.
type readingRuntime struct {
	name    string
	defines []string // symbols of which the runtime, or code made for it, has one
	imports []string // symbols that code takes from elsewhere for it
	objects []string // beginnings of the names of its files: DT_SONAME, or the file's own
	section string
}

// readingRuntimes lists what is known to read return addresses. Code of other readingRuntimes is refused too,
// by its form (callers.go): a name makes the reason plain, and finds readingRuntimes whose code is in
// another file or is made later.
var readingRuntimes = []readingRuntime{
	{name: "OCaml's frame tables", defines: []string{"caml_frametable", "caml_startup__frametable", "caml_system__frametable", "caml_init_frame_descriptors"}, objects: []string{"libasmrun"}},
	{name: "GHC's runtime", defines: []string{"stg_returnToStackTop", "StgRun", "hs_init_ghc", "stg_upd_frame_info"}, objects: []string{"libHSrts", "libHSbase", "libHSghc-prim"}},
	{
		name: "V8's builtins", objects: []string{"libnode.so", "libv8"},
		defines: []string{"Builtins_JSEntry", "Builtins_InterpreterEntryTrampoline", "v8_Default_embedded_blob_", "v8_Default_embedded_blob_code_", "v8_Default_embedded_blob_code_data_", "v8dbg_OFF_HEAP_MASK", "v8dbg_FirstNonstringType"},
	},
	{name: "Erlang's runtime", defines: []string{"erl_start", "erts_alloc_init", "beam_jit_call_nif"}, objects: []string{"beam.smp", "beam."}},
	{name: "Mono", defines: []string{"mono_jit_init", "mono_jit_exec", "mono_arch_unwind_frame"}, objects: []string{"libmono-", "libmonosgen", "libmonoboehm"}},
	{name: ".NET's runtime", defines: []string{"coreclr_initialize", "RhpNewFast", "RhpGcProbe"}, objects: []string{"libcoreclr.", "libclrjit."}, section: "__managedcode"},
	{name: "Julia's runtime", defines: []string{"jl_init", "jl_init_with_image", "jl_toplevel_eval"}, objects: []string{"libjulia"}},
	{name: "SBCL's runtime", defines: []string{"call_into_lisp", "gc_init_immobile", "lisp_startup_options"}, objects: []string{"sbcl", "libsbcl"}},
	{name: "Guile's just-in-time compiler", defines: []string{"scm_init_guile", "scm_boot_guile"}, objects: []string{"libguile-"}},
	{name: "Java's virtual machine", defines: []string{"JNI_CreateJavaVM", "JNI_GetCreatedJavaVMs", "graal_create_isolate"}, objects: []string{"libjvm.", "libj9vm"}},
	{name: "LuaJIT", defines: []string{"luaJIT_setmode", "luaJIT_profile_start", "lj_vm_call", "lj_vm_pcall"}, objects: []string{"libluajit"}},
	{name: "PyPy's runtime", defines: []string{"pypy_main_startup", "pypy_execute_source", "rpython_startup_code"}, objects: []string{"libpypy"}},
	{name: "Chez Scheme's runtime", defines: []string{"Sscheme_init", "Sbuild_heap", "racket_boot"}},
	{name: "MLton's runtime", defines: []string{"MLton_init", "MLton_gcFrameInfos", "GC_foreachStackFrame"}},
	{name: "Poly/ML's runtime", objects: []string{"libpolyml"}},
	{name: "Dart's runtime", defines: []string{"Dart_Initialize", "_kDartVmSnapshotInstructions", "_kDartIsolateSnapshotInstructions"}},
	{name: "SpiderMonkey", objects: []string{"libmozjs", "libxul."}},
	{name: "JavaScriptCore", objects: []string{"libjavascriptcoregtk", "libJavaScriptCore"}},
	{name: "libgo, the runtime of gccgo", defines: []string{"__go_init_main", "runtime_gogo"}, objects: []string{"libgo."}},
	{name: "LLVM's stack maps", section: ".llvm_stackmaps"},
	{name: "GCC's split stacks", defines: []string{"__morestack"}, imports: []string{"__morestack"}},
	{name: "the profiler gprof (-pg)", defines: []string{"_mcount", "__fentry__"}, imports: []string{"mcount", "_mcount", "__fentry__"}},
	{name: "the calls of -finstrument-functions", imports: []string{"__cyg_profile_func_enter"}},
	{name: "a sanitizer", defines: []string{"__tsan_func_entry", "__asan_init", "__msan_init", "__lsan_init", "__hwasan_init"}, imports: []string{"__tsan_func_entry", "__asan_init", "__msan_init"}, objects: []string{"libasan.", "libtsan.", "liblsan.", "libhwasan."}},
	{name: "heaptrack", objects: []string{"libheaptrack"}},
}

// foreign are compilers, by what .comment says, whose code is not C's, and the runtime of it.
var foreign = map[string]string{"GHC ": "GHC's runtime"}

// compilers are those of C, C++ and Rust, and linkers, by what .comment says of them.
var compilers = []string{"GCC: (", "clang version", "rustc version", "Linker: ", "LLD ", "mold ", "GNU C", "Android "}

// named finds a runtime by the names that a file has, and the name that tells. In the C library
// the profiler's functions stand for those who take them from there.
func (im *Image) named() (r *readingRuntime, mark string) {
	t := im.table()
	libc := im.soname == "libc.so.6" || strings.HasPrefix(im.soname, "libc.musl-")
	taken := map[string]bool{}
	for _, name := range t.slots.names {
		taken[name] = true
	}
	has := map[string]bool{}
	for i := range t.objs {
		has[t.objs[i].name] = true
	}
	for _, fn := range t.funcs {
		into := has
		if fn.PLT {
			into = taken
		}
		for _, raw := range append([]string{fn.Name}, fn.Aliases...) {
			name, _, _ := strings.Cut(raw, "@")
			into[name] = true
		}
	}
	for i := range readingRuntimes {
		r := &readingRuntimes[i]
		find := func(from map[string]bool, names []string) string {
			if at := slices.IndexFunc(names, func(n string) bool { return from[n] }); at >= 0 {
				return names[at]
			}
			return ""
		}
		if mark := find(taken, r.imports); mark != "" && !libc {
			return r, mark
		}
		if mark := find(has, r.defines); mark != "" && !libc {
			return r, mark
		}
		if r.section != "" && im.elf.section(r.section) != nil {
			return r, "section " + r.section
		}
		for _, file := range []string{im.soname, path.Base(im.elf.path)} {
			if slices.ContainsFunc(r.objects, func(o string) bool { return file == o || strings.HasPrefix(file, o) && o != "sbcl" }) {
				return r, file
			}
		}
	}
	return nil, ""
}

// comments gives the strings of .comment: each compiler and linker that made a part of the file
// leaves one, unless the section was stripped.
func (im *Image) comments() []string {
	s := im.elf.section(".comment")
	if s == nil {
		return nil
	}
	text, err := im.elf.stringAt(s.off, min(s.size, 1<<16), ".comment")
	if err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(strings.Split(text, "\x00"), func(c string) bool { return c == "" })
}

// made tells by .comment of a foreign runtime, or of a compiler that is not known.
func (im *Image) made() (runtime, mark string, unknown error) {
	for _, c := range im.comments() {
		for prefix, name := range foreign {
			if strings.HasPrefix(c, prefix) {
				return name, fmt.Sprintf(".comment: %q", c), nil
			}
		}
		if !slices.ContainsFunc(compilers, func(k string) bool { return strings.Contains(c, k) }) {
			unknown = cmp.Or(unknown, fmt.Errorf("a part of it was made by %.60q, of which it is not known who reads return addresses", c))
		}
	}
	return "", "", unknown
}
