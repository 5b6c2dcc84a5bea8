package symbol

import (
	"os/exec"
	"strings"
	"testing"
)

// TestReaders asks files of which it is known who reads return addresses.
func TestReaders(t *testing.T) {
	for _, c := range []struct{ path, runtime, unknown string }{
		{redis, "", ""},
		{"/usr/bin/perl", "", ""},
		{"/usr/bin/sqlite3", "", ""},
		{"/usr/bin/python3", "", ""},
		{"/lib/x86_64-linux-gnu/libc.so.6", "", ""},
		{"/lib64/ld-linux-x86-64.so.2", "", ""},
		{"/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "", ""},
		{"/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "", ""},
		{"/usr/lib/x86_64-linux-gnu/libguile-3.0.so.1", "Guile's just-in-time compiler (scm_init_guile)", ""},
		{"/usr/bin/ocamlopt", "OCaml's frame tables (caml_frametable)", ""},
		{buildC(t, "static"), "", ""},
		{buildC(t, "clang"), "", ""},
		{build(t, "gcc", cSource, "-pg"), "the profiler gprof (-pg) (mcount)", ""},
		{build(t, "gcc", cSource, "-pg", "-static"), "the profiler gprof (-pg) (_mcount)", ""},
		{build(t, "gcc", cSource, "-pg", "-mfentry", "-s"), "the profiler gprof (-pg) (__fentry__)", ""},
		{build(t, "gcc", cSource, "-finstrument-functions", "-fno-plt"), "-finstrument-functions (__cyg_profile_func_enter)", ""},
		{build(t, "gcc", cSource+"\nint caml_frametable;"), "OCaml's frame tables (caml_frametable)", ""},
		{build(t, "gcc", cSource+"\n__asm__(\".ident \\\"GHC 9.0.2\\\"\");", "-s"), "GHC's runtime (.comment: \"GHC 9.0.2\")", ""},
		{build(t, "gcc", cSource+"\n__asm__(\".ident \\\"FooC 1.0\\\"\");"), "", "a part of it was made by \"FooC 1.0\""},
	} {
		r := open(t, c.path, noDebug).Readers()
		unknown := ""
		if r.Unknown != nil {
			unknown = r.Unknown.Error()
		}
		if !strings.HasSuffix(r.Runtime, c.runtime) || (c.runtime == "") != (r.Runtime == "") || !strings.HasPrefix(unknown, c.unknown) || (c.unknown == "") != (unknown == "") {
			t.Errorf("%s: %q, %q; want %q, %q", c.path, r.Runtime, unknown, c.runtime, c.unknown)
		}
	}
	if r := open(t, build(t, "go", pureGo), noDebug).Readers(); r.Unknown == nil || !strings.Contains(r.Unknown.Error(), "without frame descriptions") {
		t.Errorf("a Go program: %+v", r)
	}
}

// tabled is a C program with forty functions in assembly, each of three calls, of which a table
// says the places behind them in a form; or which have no frame descriptions.
func tabled(entry, cfi, endcfi string) string {
	text := ".text\n" + cfi + "\nsub $8, %rsp\ncall leaf\n1: call leaf\n2: call leaf\n3: add $8, %rsp\nret\n" + endcfi + "\n"
	if entry != "" {
		text += ".data\n.p2align 3\n"
		for _, label := range []string{"1b", "2b", "3b"} {
			text += strings.ReplaceAll(entry, "@", label) + "\n"
		}
	}
	text = strings.ReplaceAll(strings.Repeat(text, 40)+".text\n", "\n", `\n`)
	return "__attribute__((used)) void leaf(void) {}\nint main(void) { return 0; }\n__asm__(\"" + text + "\");\n"
}

// TestReadersByForm finds tables of unknown runtimes, by whatever form they name the places behind
// calls, and code without frame descriptions.
func TestReadersByForm(t *testing.T) {
	const start, end = ".cfi_startproc", ".cfi_endproc"
	for _, c := range []struct {
		name, src string
		flags     []string
		runtime   bool
		unknown   bool
	}{
		{"plain", tabled("", start, end), nil, false, false},
		{"no descriptions", tabled("", "", ""), nil, false, true},
		{"relocated", tabled(".quad @", start, end), nil, true, false},
		{"addresses", tabled(".quad @", start, end), []string{"-no-pie"}, true, false},
		{"half addresses", tabled(".long @", start, end), []string{"-no-pie"}, true, false},
		{"distances", tabled(".long @ - .", start, end), nil, true, false},
	} {
		path := build(t, "gcc", c.src, append(c.flags, "-s")...)
		r := open(t, path, noDebug).Readers()
		if (r.Runtime != "") != c.runtime || (r.Unknown != nil) != c.unknown {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	s, err := open(t, "/usr/bin/ocamlopt", noDebug).scanCalls()
	if err != nil || s.tabled < s.callers/2 {
		t.Errorf("OCaml by its form: %+v, %v", s, err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("%v: ./test installs it", err)
	}
	s, err = open(t, node, noDebug).scanCalls()
	if err != nil || s.bare < 2*(minBare+s.sites/bareShare) {
		t.Errorf("V8's builtins by their form: %+v, %v", s, err)
	}
	s, err = open(t, redis, noDebug).scanCalls()
	if err != nil || s.tabled > 1 || s.callers < 1000 || s.bare > 4 {
		t.Errorf("redis: %+v, %v", s, err)
	}
}
