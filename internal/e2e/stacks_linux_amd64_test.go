package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ianlancetaylor/demangle"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
)

// stackFrame is a call in progress, as gdb or the trace tells of it.
type stackFrame struct {
	Name    string
	Off     int
	Line    int
	Inlined []string // functions with their lines, the innermost first
}

// signalFrame is the name of code that a signal's handler returns to: it has no symbol.
const signalFrame = "<signal>"

// cloned is what compilers append to the names of functions that they have changed.
var cloned = regexp.MustCompile(`(\.(part|constprop|isra|cold|abi0)(\.\d+)?)+$`)

// plainName is a function's name without its parameters. gdb writes what is behind a point of a name in brackets.
func plainName(s string) string {
	if name, _, ok := strings.Cut(s, "("); ok && name != "" && !strings.HasSuffix(name, ".") { // not Go's pkg.(*Type).Method
		s = name
	}
	return cloned.ReplaceAllString(strings.NewReplacer("[", ".", "]", "").Replace(s), "")
}

// gdbStacks gives the stacks that gdb sees at each hit of breakpoints, for each of these.
func gdbStacks(t *testing.T, at []string, cmd ...string) [][][]stackFrame {
	t.Helper()
	c := exec.Command("gdb", append([]string{"-nx", "-q", "-batch", "-x", "testdata/stacks.py", "--args"}, cmd...)...)
	// gdb reports a hit again where a signal of Go's runtime comes in between.
	c.Env = append(os.Environ(), "STACK_AT="+strings.Join(at, ";"), "DEBUGINFOD_URLS=", "GODEBUG=asyncpreemptoff=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	stacks := make([][][]stackFrame, len(at))
	for l := range strings.Lines(string(out)) {
		text, ok := strings.CutPrefix(l, "STACK ")
		if !ok {
			continue
		}
		number, text, _ := strings.Cut(text, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		var frames []struct {
			Name      string
			Off, Line int
			Inlined   [][2]any
		}
		if err := json.Unmarshal([]byte(text), &frames); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		stack := make([]stackFrame, len(frames))
		for i, f := range frames {
			stack[i] = stackFrame{Name: plainName(f.Name), Off: f.Off, Line: f.Line}
			if f.Name == signalFrame {
				stack[i].Name = signalFrame
			}
			for _, in := range f.Inlined {
				stack[i].Inlined = append(stack[i].Inlined, fmt.Sprintf("%s:%v", plainName(in[0].(string)), in[1]))
			}
		}
		stacks[n] = append(stacks[n], stack)
	}
	return stacks
}

// hitStacks is what kprobe trace records of an event: the stacks of its hits, and why each ends.
type hitStacks struct {
	stacks [][]stackFrame
	ends   []string
}

// tracedStacks runs a program with probes and gives what each of these has recorded, by its name, and what the program has
// printed.
func tracedStacks(t *testing.T, args []string, cmd ...string) (map[string]hitStacks, string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "hits")
	args = append([]string{"trace", "--stacktrace=40", "--format", "json", "-o", out}, args...)
	s := &session{t: t}
	s.start(command(t, append(append(args, "--"), cmd...)...))
	<-s.done
	if s.err != nil {
		t.Fatalf("%s: %v\n%s", s.cmd, s.err, s.errs.String())
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]hitStacks{}
	for l := range strings.Lines(string(b)) {
		var h struct {
			Event string
			Stack []struct {
				At      string
				Line    int
				Inlined []struct {
					Func string
					Line int
				}
			}
			Ends string `json:"stack_ends"`
		}
		if err := json.Unmarshal([]byte(l), &h); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		var stack []stackFrame
		for _, f := range h.Stack {
			name, rest, _ := strings.Cut(f.At, "+0x")
			off, _, _ := strings.Cut(rest, "/")
			n, _ := strconv.ParseInt(off, 16, 32)
			frame := stackFrame{Name: plainName(name), Off: int(n), Line: f.Line}
			for _, in := range f.Inlined {
				frame.Inlined = append(frame.Inlined, fmt.Sprintf("%s:%d", plainName(in.Func), in.Line))
			}
			stack = append(stack, frame)
		}
		e := all[h.Event]
		e.stacks, e.ends = append(e.stacks, stack), append(e.ends, h.Ends)
		all[h.Event] = e
	}
	return all, s.out.String()
}

// compareStacks compares the callers of the n-th hits.
func compareStacks(t *testing.T, want [][]stackFrame, got hitStacks) {
	t.Helper()
	if len(got.stacks) != len(want) {
		t.Fatalf("%d hits, gdb sees %d", len(got.stacks), len(want))
	}
	frames, inlined := 0, 0
	for i := range want {
		w, g := want[i][1:], got.stacks[i]
		if len(w) != len(g) || got.ends[i] != "" {
			t.Fatalf("hit %d: %q\n%+v\ngdb:\n%+v", i, got.ends[i], g, w)
		}
		for j := range w {
			frames++
			inlined += len(w[j].Inlined)
			if w[j].Name == signalFrame {
				continue
			}
			if fmt.Sprint(w[j]) != fmt.Sprint(g[j]) {
				t.Fatalf("hit %d, caller %d: %+v, gdb: %+v\n%+v\n%+v", i, j, g[j], w[j], g, w)
			}
		}
	}
	t.Logf("%d hits, %d frames, %d inlined functions", len(want), frames, inlined)
}

// TestStacks compares the stacks at the n-th hits of a deterministic program with those that gdb sees in another run: by function,
// offset, line and inlined functions. It is C++ code without frame pointers. Return addresses may be replaced, and loads be looked
// at by the kernel.
func TestStacks(t *testing.T) {
	exe := testprog.Build(t, "stacks", "-g")
	const rounds = "52"
	want := gdbStacks(t, []string{"leaf"}, exe, rounds)[0]
	if len(want) < 1000 {
		t.Fatalf("%d hits", len(want))
	}
	returns := []string{"--trampoline"}
	for _, fn := range []string{"once", "varying", "aligned", "framed", "thrower", "guarded", "onsignal"} {
		returns = append(returns, "-e", "r "+fn)
	}
	for name, c := range map[string]struct{ args, cmd []string }{
		"plain":           {nil, nil},
		"trampolines":     {returns, nil},
		"signals blocked": {nil, []string{"blocked"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := tracedStacks(t, append([]string{"-e", "p:leaf leaf"}, c.args...), append([]string{exe, rounds}, c.cmd...)...)
			compareStacks(t, want, got["kprobes/leaf"])
		})
	}
	for _, n := range []int{1, 3, 6} {
		t.Run(fmt.Sprint("at most ", n), func(t *testing.T) {
			args := append([]string{fmt.Sprintf("--stacktrace=%d", n), "-e", "p:leaf leaf"}, returns...)
			all, _ := tracedStacks(t, args, exe, rounds)
			got, first := all["kprobes/leaf"], make([][]stackFrame, len(want))
			for i, w := range want {
				first[i] = w[:min(n+1, len(w))]
				if ends := got.ends[i]; (ends == "more callers than are recorded") != (len(w) > n+1) {
					t.Fatalf("hit %d: %q: %+v", i, ends, got.stacks[i])
				}
				got.ends[i] = ""
			}
			compareStacks(t, first, got)
		})
	}
}

// reported is a line of a report that begins a stack, and those of the stack, whose functions it has.
var reported = regexp.MustCompile(`kernel_stack: +<stack trace >\n((?:=> .*\n)+)`)

// TestStacksOfFile compares the functions of the stacks in a file of kprobe record with those that gdb sees, as kprobe report and trace-cmd
// print them.
func TestStacksOfFile(t *testing.T) {
	exe := testprog.Build(t, "stacks", "-g")
	const rounds = "52"
	want := gdbStacks(t, []string{"leaf"}, exe, rounds)[0]
	file := tempFile(t, "trace.dat")
	s := &session{t: t}
	s.start(command(t, "record", "-o", file, "--stacktrace=40", "p:leaf leaf", "--", exe, rounds))
	<-s.done
	if s.err != nil {
		t.Fatalf("%v: %s", s.err, s.errs.String())
	}
	ours, err := command(t, "report", "-i", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := exec.Command("trace-cmd", "report", "-i", file).Output()
	if err != nil {
		t.Fatalf("%v (install trace-cmd)", err)
	}
	if string(ours) != string(theirs) {
		t.Error("kprobe report and trace-cmd report differ")
	}
	stacks := reported.FindAllSubmatch(ours, -1)
	if len(stacks) != len(want) || len(want) < 1000 {
		t.Fatalf("%d stacks of %d hits", len(stacks), len(want))
	}
	for i, m := range stacks {
		var got, names []string
		for line := range strings.Lines(string(m[1])) {
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "=> "), " (")
			got = append(got, plainName(demangle.Filter(name, demangle.NoParams)))
		}
		for _, w := range want[i] {
			names = append(names, w.Name)
		}
		for k := range min(len(names), len(got)) {
			if names[k] == signalFrame {
				got[k] = signalFrame
			}
		}
		if !slices.Equal(got, names) {
			t.Fatalf("hit %d: %q, gdb: %q", i, got, names)
		}
	}
}

// TestStacksInside is TestStacks at every instruction of functions with different frames.
func TestStacksInside(t *testing.T) {
	t.Parallel()
	exe := testprog.Build(t, "stacks", "-g")
	for _, fn := range []string{"varying", "aligned", "framed", "tail", "thrower"} {
		t.Run(fn, func(t *testing.T) {
			var at, events []string
			offs := instructions(t, exe, fn)
			if fn == "aligned" { // while its stack is being aligned the CFA is in a register that rules of walks do not have
				all := len(offs)
				offs = slices.DeleteFunc(offs, func(off int) bool { return stackless(t, exe, fmt.Sprintf("%s+%d", fn, off)) })
				if len(offs) < all/2 {
					t.Errorf("%d of %d instructions of %s have stacks", len(offs), all, fn)
				}
			}
			for _, off := range offs {
				at = append(at, fmt.Sprintf("*((char*)%s+%d)", fn, off))
				events = append(events, "-e", fmt.Sprintf("p:i%d %s+%d", off, fn, off))
			}
			want := gdbStacks(t, at, exe, "8")
			got, _ := tracedStacks(t, events, exe, "8")
			for i, off := range offs {
				if len(want[i]) > 0 {
					compareStacks(t, want[i], got[fmt.Sprintf("kprobes/i%d", off)])
				}
			}
		})
	}
}

// stackless says whether kprobe trace refuses to record stacks at a place.
func stackless(t *testing.T, exe, place string) bool {
	t.Helper()
	out, err := command(t, "trace", "--stacktrace", "-e", "p "+place, "--", exe, "0").CombinedOutput()
	refused := strings.Contains(string(out), "neither unwind tables nor the code tell where the return address is")
	if refused == (err == nil) {
		t.Fatalf("%s: %v\n%s", place, err, out)
	}
	return refused
}

// instructions gives where the instructions of a function stand, from its start, as objdump has them.
func instructions(t *testing.T, exe, fn string) (offs []int) {
	t.Helper()
	out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", "--disassemble="+fn, exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	start := int64(-1)
	for l := range strings.Lines(string(out)) {
		text, insn, ok := strings.Cut(strings.TrimSpace(l), ":\t")
		addr, err := strconv.ParseInt(text, 16, 64)
		if !ok || err != nil || strings.HasPrefix(insn, "nop") {
			continue
		}
		if start < 0 {
			start = addr
		}
		offs = append(offs, int(addr-start))
	}
	return offs
}

// TestStacksDamaged has the walk come to frames that are none: it ends there, and the program computes the same.
func TestStacksDamaged(t *testing.T) {
	exe := testprog.Build(t, "stacks", "-g")
	for _, words := range [][]string{{"damaged"}, {"damaged", "blocked"}} {
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			cmd := append([]string{exe, "1"}, words...)
			alone, err := exec.Command(cmd[0], cmd[1:]...).Output()
			if err != nil {
				t.Fatal(err)
			}
			got, out := tracedStacks(t, []string{"-e", "p:leaf leaf"}, cmd...)
			if out != string(alone) {
				t.Errorf("probed it prints %s, alone %s", out, alone)
			}
			leaf, ends := got["kprobes/leaf"], map[string]int{}
			for i, s := range leaf.stacks {
				if s[0].Name == "damaged" {
					ends[leaf.ends[i]]++
				} else if leaf.ends[i] != "" {
					t.Errorf("hit %d: %q: %+v", i, leaf.ends[i], s)
				}
			}
			t.Log(ends)
			n := 0
			for _, v := range ends {
				n += v
			}
			if n != 15 || ends[""] > 1 || len(ends) < 3 {
				t.Errorf("%d hits with a damaged frame: %v", n, ends)
			}
		})
	}
}

// TestLateObject: the tracer does not run for the second that a load waits for it. It tells that when it runs again, what comes then is
// seen, and the next load waits again.
func TestLateObject(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "dl"))
	lib := testprog.Build(t, "libdlone")
	s := trace(t, p.PID, "--alone", "p:work "+lib+":lib_work", "p:back back")
	goOn := standStill(t, s.cmd.Process.Pid, p.PID)
	n := right(t, p, "open "+lib)
	orig := bytesAt(t, p.PID, n["addr"], 5)
	right(t, p, "call 3")
	goOn()
	const word = "a thread that had loaded an object waited a second, and went on"
	within(t, "the word", func() bool { return strings.Contains(s.errs.String(), word) })
	within(t, "the probe", func() bool { return !bytes.Equal(bytesAt(t, p.PID, n["addr"], 5), orig) })
	right(t, p, "call 5")
	right(t, p, "again "+lib)
	right(t, p, "call 7")
	r := s.end()
	if strings.Count(r.stderr, word) == 1 { // else the tracer did not run for a second by itself
		r.counted(t, "work", 5+7, "jump")
	}
}

// TestStacksOfObjects has objects come, go and come again where another one was: the walk knows the frames of each from its first
// call on, but where the tracer did not run for the second that a load waits for it.
func TestStacksOfObjects(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "dl"))
	out := filepath.Join(t.TempDir(), "hits")
	s := trace(t, p.PID, "--stacktrace", "--format", "json", "-o", out, "p:back back")
	const rounds, calls = 12, 10
	var want []string
	var late [rounds]bool
	var loads strings.Builder // for who reads a failure
	inTime := 0
	began := time.Now()
	for i := range rounds {
		lib := []string{"libdlone", "libdltwo"}[i%2]
		path := testprog.Build(t, lib)
		p.Ask("open "+path, nil)
		if late[i] = time.Since(began) >= time.Second; !late[i] { // where a thread has waited in vain to close one it does not wait to open the next
			inTime++
		}
		took := time.Since(began)
		maps, err := procfs.MapsOf(fmt.Sprintf("/proc/%d", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range maps {
			if m.Path == path && m.Perm&procfs.PermExec != 0 {
				fmt.Fprintf(&loads, "%d: %s at %#x to %#x, after %v\n", i, lib, m.Start, m.End, took)
			}
		}
		if n := p.Counts(fmt.Sprintf("back %d", calls)); n["bad"] != 0 {
			t.Fatalf("%v", n)
		}
		began = time.Now()
		p.Ask("close", nil)
		for range calls {
			want = append(want, filepath.Base(path))
		}
	}
	if inTime < rounds/2 {
		t.Errorf("%d of %d loads took less than a second", inTime, rounds)
	}
	s.interrupt()
	<-s.done
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d hits, want %d; %s", len(lines), len(want), s.errs.String())
	}
	for i, l := range lines {
		if late[i/calls] {
			continue
		}
		var h struct {
			Stack []struct{ At string }
			Ends  string `json:"stack_ends"`
		}
		if err := json.Unmarshal([]byte(l), &h); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range h.Stack {
			name, _, _ := strings.Cut(f.At, "+")
			names = append(names, name)
		}
		if h.Ends != "" || len(names) < 4 || strings.Join(names[1:4], " ") != "callback main __libc_start_call_main" {
			t.Fatalf("hit %d, in %s: %s\n%s%s", i, want[i], l, s.errs.String(), &loads)
		}
	}
}

// TestGoStacks is TestStacks for Go code, which tells its lines and what was inlined also when it is stripped.
func TestGoStacks(t *testing.T) {
	want := gdbStacks(t, []string{"*'main.leaf'"}, testprog.Build(t, "gostacks"), "60")[0]
	if len(want) < 1000 {
		t.Fatalf("%d hits", len(want))
	}
	for name, flags := range map[string][]string{"plain": nil, "stripped": {"-ldflags=-s -w"}} {
		t.Run(name, func(t *testing.T) {
			got, _ := tracedStacks(t, []string{"-e", "p:leaf main.leaf"}, testprog.Build(t, "gostacks", flags...), "60")
			compareStacks(t, want, got["kprobes/leaf"])
		})
	}
}
