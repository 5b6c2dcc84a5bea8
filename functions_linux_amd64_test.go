package kprobes_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestFunctionsAreThose: the functions of a C program are those that nm lists, and debug information tells their parameters.
func TestFunctionsAreThose(t *testing.T) {
	path := testprog.Build(t, "work")
	out, err := exec.Command("nm", "-S", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 4 && strings.EqualFold(f[2], "t") && strings.HasPrefix(f[3], "f_") {
			want = append(want, f[3]+" "+strings.TrimLeft(f[1], "0"))
		}
	}
	_, core := attachTo(t, path)
	signatures := map[string]string{}
	for f := range core.Functions("f_*") {
		got = append(got, fmt.Sprintf("%s %x", f.Name, f.Size))
		if s, ok := core.Symbol(f.Addr); !ok || s.Name != f.Name || s.Off != 0 || f.Object != "" {
			t.Errorf("%+v lies at %+v", f, s)
		}
		if err := f.Check(); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		signatures[f.Name], err = f.Signature()
		if none := f.Name == "f_ret" || f.Name == "f_nop5"; none != (err != nil) { // they are written in assembly
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("functions %q, nm lists %q", got, want)
	}
	for name, want := range map[string]string{
		"f_lea": "uint64_t (uint64_t a, uint64_t b)", "f_ptr": "uint64_t (rec* r)",
		"f_double": "double (double a, double b)", "f_str": "uint64_t (char* s, unsigned int n)",
	} {
		if signatures[name] != want {
			t.Errorf("%s is %q, want %q", name, signatures[name], want)
		}
	}
	n := 0
	for f := range core.Functions("libc*:malloc") {
		if n++; !strings.HasPrefix(f.Object, "libc") || f.Name != "malloc" {
			t.Errorf("%+v", f)
		}
	}
	if n != 1 {
		t.Errorf("%d functions malloc of the C library", n)
	}
}

// TestFunctionsOfGo: signatures of Go, and inlined calls: those at which events stand with InlinesAll.
func TestFunctionsOfGo(t *testing.T) {
	_, core := attach(t, "gowork")
	for name, want := range map[string]string{
		"main.Ints": "func(a uint64, b uint64, c int32) uint64", "main.Text": "func(s string, n int) int",
		"main.(*Tree).Sum": "func(t *main.Tree, depth uint64) uint64",
	} {
		n := 0
		for f := range core.Functions(name) {
			sig, err := f.Signature()
			if n++; err != nil || sig != want {
				t.Errorf("%s is %q, %v, want %q", name, sig, err, want)
			}
		}
		if n != 1 {
			t.Errorf("%d functions %s", n, name)
		}
	}
	const inlined = "sync.(*Mutex).Unlock"
	skipped := 0
	d, err := event.Parse("p:inlined " + inlined)
	must(t, err)
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{
		Count: true, Inlines: kprobes.InlinesAll, Skip: func(string, error) { skipped++ },
	})
	must(t, err)
	n := 0
	for f := range core.Functions(strings.ReplaceAll(inlined, "*", `\*`)) {
		n, err = f.Inlined()
		must(t, err)
	}
	if want := len(evs) + skipped - 1; n != want || n == 0 {
		t.Errorf("%d inlined calls of %s, events stand at %d", n, inlined, want)
	}
}

// TestSelfFunctions: Check refuses those functions of the runtime that an event on all of them leaves out, but for those of which only
// the code that would be generated tells.
func TestSelfFunctions(t *testing.T) {
	core, err := kprobes.Self()
	must(t, err)
	const pattern, generated = "runtime.[gs]*", "can be used to check the stack"
	for _, kind := range []string{"p", "r"} {
		left := map[string]error{}
		d, err := event.Parse(kind + " " + pattern)
		must(t, err)
		evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Skip: func(name string, why error) { left[name] = why }})
		must(t, err)
		all, refused, n := len(evs)+len(left), 0, 0
		must(t, core.Remove(evs))
		for f := range core.Functions(pattern) {
			n++
			err, why := f.Check(), left[f.Name]
			if kind == "r" {
				err = f.CheckReturn()
			}
			switch {
			case err != nil && why == nil:
				t.Errorf("%s %s: %v, and it can be probed", kind, f.Name, err)
			case err != nil:
				refused++
			case why != nil && !strings.Contains(why.Error(), generated):
				t.Errorf("%s %s is left out: %v", kind, f.Name, why)
			}
		}
		if n != all || refused == 0 {
			t.Errorf("%s: %d functions, %d of a pattern, %d refused", kind, n, all, refused)
		}
	}
	for f := range core.Functions("runtime.lock") { // without debug information
		if n, err := f.Inlined(); err != nil || n == 0 {
			t.Errorf("%s: %d inlined calls, %v", f.Name, n, err)
		}
	}
	for f := range core.Functions(pattern) { // a loop that is left
		if f.Name == "" || f.Size == 0 {
			t.Errorf("%+v", f)
		}
		break
	}
}
