package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// built compiles a source of testdata.
func built(t *testing.T, source string, compiler ...string) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join("testdata", source))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, source), text, 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "program")
	cmd := exec.Command(compiler[0], append(compiler[1:], "-o", out, source)...)
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s(./test installs what is missing)", cmd, err, msg)
	}
	return out
}

// Programs of runtimes that find frames by return addresses: under return probes on all that a
// pattern finds they write what they write without, no return address is replaced, and the reason
// names the runtime; nor is one where that is asked for.
func TestForeignRuntimes(t *testing.T) {
	t.Parallel()
	ocaml := []string{built(t, "frames.ml", "ocamlopt")}
	haskell := []string{built(t, "frames.hs", "ghc", "-v0", "-O1")}
	guile := []string{"guile", "--no-auto-compile", "-c", "(let loop ((i 0) (s 0)) (if (< i 100000) (loop (+ i 1) (+ s (string-length (number->string i)))) (begin (display s) (newline))))"}
	node := []string{"node", "--jitless", "-e", "let s=0; for(let i=0;i<1e5;i++) s+=String(i).length; try { null.x } catch (e) { s+=e.stack.length>0 } console.log(s)"}
	for _, c := range []struct {
		name    string
		command []string
		probes  []string
		one     string // a function that returns at known exits
		why     string
	}{
		{"ocaml", ocaml, []string{"r *"}, "r caml_alloc_string", "OCaml's frame tables (caml_frametable)"},
		{"ocaml's own functions", ocaml, []string{"r caml*"}, "r caml_main", "OCaml's frame tables (caml_frametable)"},
		{"ocaml stripped", []string{stripped(t, ocaml[0])}, []string{"r *"}, "r caml_alloc_string", "OCaml's frame tables (caml_frametable)"},
		{"haskell", haskell, []string{"r *"}, "r newCAF", "GHC's runtime ("},
		{"guile", guile, []string{"r libguile-3.0.so.1:scm_*", "r libgc.so.1:GC_*"}, "r libguile-3.0.so.1:scm_c_make_string", "Guile's just-in-time compiler ("},
		{"node", node, []string{"r v8::internal::Isolate::*", "r v8::internal::Runtime_*", "r v8::internal::Factory::*"}, "r v8::internal::Isolate::New", "V8's builtins ("},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, err := exec.LookPath(c.command[0])
			if err != nil {
				t.Fatalf("%v: ./test installs it", err)
			}
			c.command[0] = path
			want := run(t, exec.Command(c.command[0], c.command[1:]...))
			if want.code != 0 || want.stdout == "" {
				t.Fatal(want)
			}
			probed := func(args ...string) outcome {
				return run(t, command(t, slices.Concat([]string{"trace", "--stat", "-v"}, args, []string{"--"}, c.command)...))
			}
			got := probed(c.probes...)
			if got.code != 0 || got.stdout != want.stdout {
				t.Errorf("under probes: %v\nwithout: %v", got, want)
			}
			if n := strings.Count(got.stderr, " hits="); n < 50 || strings.Contains(got.stderr, "returns=trampoline") || !strings.Contains(got.stderr, c.why) {
				t.Errorf("%d events; %v", n, got)
			}
			if got := probed(c.one); got.code != 0 || got.stdout != want.stdout {
				t.Errorf("%s: %v", c.one, got)
			}
			if got := probed("--trampoline", c.one); got.code == 0 || got.stdout != "" || !strings.Contains(got.stderr, c.why) {
				t.Errorf("asked for: %v", got)
			}
		})
	}
}

func stripped(t *testing.T, program string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "stripped")
	if msg, err := exec.Command("strip", "-o", out, program).CombinedOutput(); err != nil {
		t.Fatalf("strip: %v\n%s", err, msg)
	}
	return out
}

// arcs reads the calls that gprof's file tells (glibc, sys/gmon_out.h): from where, to where, how
// often.
func arcs(t *testing.T, dir string) map[[2]uint64]uint32 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "gmon.out"))
	if err != nil || !bytes.HasPrefix(b, []byte("gmon")) {
		t.Fatalf("gmon.out: %v", err)
	}
	out := map[[2]uint64]uint32{}
	le := binary.LittleEndian
	for b = b[20:]; len(b) > 0; {
		switch tag := b[0]; {
		case tag == 0 && len(b) > 41: // a histogram of times
			b = b[41+2*le.Uint32(b[17:]):]
		case tag == 1 && len(b) >= 21:
			out[[2]uint64{le.Uint64(b[1:]), le.Uint64(b[9:])}] += le.Uint32(b[17:])
			b = b[21:]
		default:
			t.Fatalf("gmon.out: a record of type %d, %d bytes from the end", tag, len(b))
		}
	}
	return out
}

// The profiler gprof counts under return probes what it counts without.
func TestProfiled(t *testing.T) {
	program := testprog.Build(t, "arcs")
	counted := func(cmd *exec.Cmd) (map[[2]uint64]uint32, outcome) {
		cmd.Dir = t.TempDir()
		o := run(t, cmd)
		return arcs(t, cmd.Dir), o
	}
	want, plain := counted(exec.Command(program))
	got, o := counted(command(t, "trace", "--stat", "-v", "r *", "--", program))
	if o.code != 0 || o.stdout != plain.stdout || len(want) < 4 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("arcs %v, without probes %v; %v", got, want, o)
	}
	if !strings.Contains(o.stderr, "the profiler gprof") {
		t.Error(o.stderr)
	}
	fails(t, command(t, "trace", "--trampoline", "r plain", "--", program), 1, "the profiler gprof (-pg)")
}

// Functions that read their return address, or jump to one that does, keep it.
func TestOwnReturnAddress(t *testing.T) {
	p := program(t, "callers")
	s := trace(t, p.PID, "--stat", "-v", "r *")
	right(t, p, "go 100")
	r := s.end()
	if out := r.totals["r_own_0"]; out.hits != 200 {
		t.Errorf("own: %+v", out)
	}
	if !strings.Contains(r.stderr, "r_deep_0 has returns=trampoline") {
		t.Error(r.stderr)
	}
	for _, c := range []struct{ probe, why string }{
		{"r next", "dlsym looks at its return address"},
		{"r own", "own reads its return address at +0x"},
		{"r over", "own reads its return address at +0x"},
	} {
		fails(t, command(t, "trace", "-p", fmt.Sprint(p.PID), "--trampoline", c.probe), 1, c.why)
	}
	right(t, p, "go 100")
}

// Code of a compiler that is not known: no return address is replaced, unless that is asked for.
func TestUnknownCode(t *testing.T) {
	path := testprog.Copy(t, testprog.Build(t, "tails"))
	mark := filepath.Join(t.TempDir(), "comment")
	if err := os.WriteFile(mark, []byte("FooC 1.0\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	if msg, err := exec.Command("objcopy", "--update-section", ".comment="+mark, path).CombinedOutput(); err != nil {
		t.Fatalf("objcopy: %v\n%s", err, msg)
	}
	p := testprog.Start(t, path)
	right(t, p, "go 10")
	fails(t, command(t, "trace", "-p", fmt.Sprint(p.PID), "r direct"), 1, `tails: a part of it was made by "FooC 1.0"`, "--trampoline")
	s := trace(t, p.PID, "--stat", "--trampoline", "r:direct direct", "r:outer outer")
	right(t, p, "go 100")
	r := s.end()
	for _, name := range []string{"direct", "outer"} {
		if got := r.totals[name]; got.hits != 100 || got.missed+got.active != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	right(t, p, "go 10")
}

// Somebody comes who reads return addresses, while calls are in progress whose return addresses
// were replaced: they are put back, the summary says why, and no more are replaced.
func TestReaderComesLater(t *testing.T) {
	for _, c := range []struct{ name, command, why string }{
		{"object", "open " + testprog.Build(t, "libframes"), "libframes has OCaml's frame tables"},
		{"code", "make", "makes code while it runs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, "callers")
			s := trace(t, p.PID, "--stat", "-v", "r:deep deep $retval", "r:bottom bottom")
			right(t, p, "hold 7")
			if n := right(t, p, "walk"); n["frames"] != 7 || n["strange"] != 7 {
				t.Errorf("no return address was replaced: %v", n)
			}
			right(t, p, c.command)
			within(t, "the reason", func() bool { return strings.Contains(s.errs.String(), c.why) })
			if n := right(t, p, "walk"); n["frames"] != 7 || n["strange"] != 0 {
				t.Errorf("return addresses were not put back: %v", n)
			}
			right(t, p, "release")
			right(t, p, "hold 5")
			if n := right(t, p, "walk"); n["frames"] != 5 || n["strange"] != 0 {
				t.Errorf("return addresses are replaced still: %v", n)
			}
			right(t, p, "release")
			r := s.end()
			if got := r.totals["deep"]; got.hits != 0 || got.active != 7 || got.missed+got.unwound != 0 {
				t.Errorf("deep: %+v", got)
			}
			if got := r.totals["bottom"]; got.hits != 2 {
				t.Errorf("bottom, which returns at its exits: %+v", got)
			}
			if n := strings.Count(r.stderr, c.why); n != 1 {
				t.Errorf("the reason is told %d times: %s", n, r.stderr)
			}
			right(t, p, "go 10")
		})
	}
}

// TestCopiedBuiltins: V8 copies its builtins to other memory and runs them there. None is probed, neither as one of a
// pattern's functions nor by name, and the program goes on as without probes.
func TestCopiedBuiltins(t *testing.T) {
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("%v: ./test installs it", err)
	}
	node := []string{path, "-e", "let s=0; const m=new Map(); for(let i=0;i<3e5;i++) { m.set(i%97, String(i)); s+=m.get(i%97).length } console.log(s)"}
	want := run(t, exec.Command(node[0], node[1:]...))
	if want.code != 0 || want.stdout == "" {
		t.Fatal(want)
	}
	probed := func(probe string) outcome {
		return run(t, command(t, slices.Concat([]string{"trace", "--counters", "--stat", "-v", probe, "--"}, node)...))
	}
	const builtin, why = "Builtins_InterpreterEntryTrampoline", "V8 copies its builtins"
	got := probed("p B*") // and OpenSSL's functions
	if got.code != 0 || got.stdout != want.stdout {
		t.Errorf("under probes: %v\nwithout: %v", got, want)
	}
	if n := strings.Count(got.stderr, " hits="); n < 50 || !strings.Contains(got.stderr, builtin+" is left out") || !strings.Contains(got.stderr, why) {
		t.Errorf("%d events; %v", n, got)
	}
	if got := probed("p " + builtin); got.code == 0 || got.stdout != "" || !strings.Contains(got.stderr, why) {
		t.Errorf("by name: %v", got)
	}
}
