package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"kprobes.dev/kprobes/internal/testprog"
)

// TestScripts runs the golden scripts of testdata, one for each behaviour, on the command as
// it is built, which stands in $BIN. Beside testscript's own commands they have
//
//	status N CMD ARGS…   runs CMD, which must end with status N
//	program NAME         builds a test program and sets $EXE to it
//	target NAME ARGS…    starts one that waits for commands, and sets $PID and $EXE
//	ask COMMAND          sends it a command; the answer is in the file answer
//	cut FILE SIZE        shortens a file
//	poke FILE AT HEX     overwrites bytes of a file
//	ndjson FILE          checks that every line is a JSON object
func TestScripts(t *testing.T) {
	bin := filepath.Dir(build(t))
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("BIN", bin)
			e.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":  scriptStatus,
			"program": func(ts *testscript.TestScript, _ bool, args []string) { scriptProgram(ts, args) },
			"target":  func(ts *testscript.TestScript, _ bool, args []string) { scriptTarget(ts, t, args) },
			"ask":     scriptAsk,
			"cut":     scriptCut,
			"poke":    scriptPoke,
			"ndjson":  scriptNDJSON,
		},
	})
}

// scriptTB makes a script what test programs are started for.
type scriptTB struct {
	*testscript.TestScript
	t *testing.T
}

func (s scriptTB) Helper()                           {}
func (s scriptTB) Fatalf(format string, args ...any) { s.TestScript.Fatalf(format, args...) }
func (s scriptTB) Errorf(format string, args ...any) { s.TestScript.Fatalf(format, args...) }
func (s scriptTB) Logf(format string, args ...any)   { s.TestScript.Logf(format, args...) }
func (s scriptTB) Cleanup(f func())                  { s.TestScript.Defer(f) }
func (s scriptTB) TempDir() string                   { return s.t.TempDir() }

func scriptStatus(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: status N CMD ARGS…")
	}
	code := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if args[0] != strconv.Itoa(code) {
		ts.Fatalf("status %d, not %s", code, args[0])
	}
}

func scriptProgram(ts *testscript.TestScript, args []string) string {
	if len(args) == 0 {
		ts.Fatalf("which program?")
	}
	exe := testprog.Build(scriptTB{TestScript: ts}, args[0])
	ts.Setenv("EXE", exe)
	return exe
}

// targets holds the target of each script that has one.
var targets sync.Map

func scriptTarget(ts *testscript.TestScript, t *testing.T, args []string) {
	p := testprog.Start(scriptTB{ts, t}, scriptProgram(ts, args), args[1:]...)
	ts.Setenv("PID", strconv.Itoa(p.PID))
	targets.Store(ts, p)
	ts.Defer(func() { targets.Delete(ts) })
}

func scriptAsk(ts *testscript.TestScript, _ bool, args []string) {
	p, ok := targets.Load(ts)
	if !ok {
		ts.Fatalf("no target")
	}
	proc := p.(*testprog.Proc)
	proc.Send(strings.Join(args, " "))
	ts.Check(os.WriteFile(ts.MkAbs("answer"), []byte(proc.Line()+"\n"), 0o600))
}

func scriptCut(ts *testscript.TestScript, _ bool, args []string) {
	size, err := strconv.ParseInt(args[1], 0, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), size))
}

func scriptPoke(ts *testscript.TestScript, _ bool, args []string) {
	at, err := strconv.ParseInt(args[1], 0, 64)
	ts.Check(err)
	b, err := strconv.ParseUint(args[2], 16, 8)
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.WriteAt([]byte{byte(b)}, at)
	ts.Check(errors.Join(err, f.Close()))
}

func scriptNDJSON(ts *testscript.TestScript, _ bool, args []string) {
	lines := bytes.Split(bytes.TrimSuffix([]byte(ts.ReadFile(args[0])), []byte("\n")), []byte("\n"))
	for _, l := range lines {
		var object map[string]any
		if err := json.Unmarshal(l, &object); err != nil {
			ts.Fatalf("%s: %q: %v", filepath.Base(args[0]), l, err)
		}
	}
}
