package workload

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// serveVar makes the test binary serve as the workload instead of testing.
const serveVar = "KPROBES_WORKLOAD_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(serveVar) != "" {
		if err := Serve(os.Stdin, os.Stdout, 1<<20); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// programs returns the C program's command and the Go one's.
func programs(t testing.TB) map[string]*exec.Cmd {
	t.Helper()
	c, err := BuildC()
	if err != nil {
		t.Fatal(err)
	}
	self := exec.Command("/proc/self/exe")
	self.Env = append(os.Environ(), serveVar+"=1")
	return map[string]*exec.Cmd{"c": exec.Command(c), "go": self}
}

// talk gives a program its commands and returns its answers.
func talk(t testing.TB, cmd *exec.Cmd, commands ...string) []string {
	t.Helper()
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\nquit\n")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if lines[0] != "ready" || len(lines) != len(commands)+1 {
		t.Fatalf("%s: output %q", cmd, out)
	}
	return lines[1:]
}

// Every function answers with the calls that were asked for and a time that is more than
// nothing; only bench_traced writes records, one a call.
func TestRun(t *testing.T) {
	for lang, cmd := range programs(t) {
		t.Run(lang, func(t *testing.T) {
			var commands []string
			for _, f := range Functions {
				commands = append(commands, "run "+f+" 3200 1")
			}
			answers := talk(t, cmd, append(commands, "written")...)
			for i, f := range Functions {
				var r Result
				if err := json.Unmarshal([]byte(answers[i]), &r); err != nil {
					t.Fatalf("%s: %v", answers[i], err)
				}
				if r.Func != f || r.Threads != 1 || r.Calls != 3200 || r.Min <= 0 || r.Median < r.Min {
					t.Errorf("%s: answer %+v", f, r)
				}
			}
			var w Written
			if err := json.Unmarshal([]byte(answers[len(Functions)]), &w); err != nil || w.Records != 3200 {
				t.Errorf("records %+v, %v, want 3200", w, err)
			}
		})
	}
}

// Threads that are bound to CPUs of their own write to buffers of their own: nothing is
// overwritten, although nothing is locked.
func TestRunThreads(t *testing.T) {
	threads := min(runtime.NumCPU(), 2)
	for lang, cmd := range programs(t) {
		t.Run(lang, func(t *testing.T) {
			run := "run bench_traced 64000 " + string(rune('0'+threads))
			answers := talk(t, cmd, run, "written")
			var w Written
			if err := json.Unmarshal([]byte(answers[1]), &w); err != nil || w.Records != 64000*uint64(threads) {
				t.Errorf("records %+v, %v, want %d", w, err, 64000*threads)
			}
		})
	}
}

func TestServeRefusesWrongCommands(t *testing.T) {
	for _, c := range []string{"run", "run bench_lea 31 1", "run nothing 3200 1", "run bench_lea 3200 0", "run bench_lea x 1", "go"} {
		var out bytes.Buffer
		if err := Serve(strings.NewReader(c+"\n"), &out, 4096); err == nil || !strings.Contains(err.Error(), c) {
			t.Errorf("%q: error %v, want one that names the command", c, err)
		}
	}
}

func TestLastCPU(t *testing.T) {
	for in, want := range map[string]int{"0\n": 1, "0-1": 2, "0-3,8-11\n": 12, "0,5": 6} {
		if got, err := lastCPU(in); got != want || err != nil {
			t.Errorf("lastCPU(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "-", "0-", "99999"} {
		if got, err := lastCPU(in); err == nil {
			t.Errorf("lastCPU(%q) = %d, want an error", in, got)
		}
	}
}

// The tables must name the same functions.
func TestTables(t *testing.T) {
	for _, f := range Functions {
		if loops[f] == nil || Symbols[f] == "" {
			t.Errorf("%s: no loop or no symbol", f)
		}
	}
	if loops[Stacked] == nil || Symbols[Bottom] == "" {
		t.Error("no deep calls")
	}
	if len(loops) != len(Functions)+1 || len(Symbols) != len(Functions)+1 {
		t.Errorf("%d loops, %d symbols, %d functions", len(loops), len(Symbols), len(Functions))
	}
}

// The first bytes of each function are those of its class in both programs, each function
// stands under one name alone, and the C tracepoint is straight-line: no call, no branch, no
// lock.
func TestFunctionsAreOfTheirClass(t *testing.T) {
	first := map[string]string{
		"bench_lea": "lea", "bench_endbr": "endbr64", "bench_push": "push", "bench_nop5": "nopl", "bench_ret": "ret",
	}
	c, err := BuildC()
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(t.TempDir(), "self") // what go test runs has no symbols
	if out, err := exec.Command("go", "test", "-c", "-o", self, ".").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v: %s", err, out)
	}
	for _, f := range Functions {
		for file, symbol := range map[string]string{c: f, self: Symbols[f]} {
			code := disassemble(t, file, symbol)
			if want := first[f]; want != "" && !strings.HasPrefix(code[0], want) {
				t.Errorf("%s in %s starts with %q, want %s", symbol, file, code[0], want)
			}
			if f == "bench_traced" && slices.ContainsFunc(code, branches) {
				t.Errorf("%s in %s is not straight-line: %q", symbol, file, code)
			}
		}
	}
}

func branches(inst string) bool {
	return inst[0] == 'j' || strings.HasPrefix(inst, "call") || strings.HasPrefix(inst, "lock")
}

// disassemble returns a function's instructions as objdump prints them.
func disassemble(t *testing.T, file, symbol string) []string {
	t.Helper()
	out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", "--disassemble="+symbol, file).Output()
	if err != nil {
		t.Fatalf("objdump (Debian: apt-get install binutils): %v", err)
	}
	var code []string
	_, text, found := strings.Cut(string(out), "<"+symbol+">:\n")
	if !found {
		t.Fatalf("%s: no function %s", file, symbol)
	}
	for line := range strings.Lines(text) {
		if _, inst, ok := strings.Cut(line, ":\t"); ok {
			code = append(code, strings.TrimSpace(inst))
		}
	}
	return code
}

func BenchmarkTraced(b *testing.B) {
	for lang, cmd := range programs(b) {
		b.Run(lang, func(b *testing.B) {
			var plain, traced Result
			again := *cmd
			again.Process, again.ProcessState = nil, nil
			for i, a := range talk(b, &again, "run bench_lea 3200000 1", "run bench_traced 3200000 1") {
				if err := json.Unmarshal([]byte(a), []*Result{&plain, &traced}[i]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(traced.Min-plain.Min, "ns/record")
		})
	}
}
