package demoapp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/symbol"
)

// serveArg makes the test binary the workload.
const serveArg = "serve-demo-workload"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == serveArg {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T) *App {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, err := Start(path, serveArg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.cmd.Process.Kill() })
	return a
}

func TestApp(t *testing.T) {
	a, ctx := start(t), t.Context()
	first, err := a.Resume(ctx)
	if err != nil || first != (Counts{}) {
		t.Fatalf("before anything was done: %+v, %v", first, err)
	}
	var c Counts
	for c.Handle < 2000 || c.Get < 500 {
		time.Sleep(20 * time.Millisecond)
		if c, err = a.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		if again, err := a.Resume(ctx); err != nil || again != c {
			t.Fatalf("paused at %+v, resumed at %+v, %v", c, again, err)
		}
	}
	if c.Wrong != 0 || c.Get > c.Handle {
		t.Errorf("counts %+v", c)
	}
	cost, err := a.Call(ctx, 100_000)
	if err != nil || cost.Calls != 100_000 || cost.Nanos == 0 || cost.PerCall() != float64(cost.Nanos)/100_000 {
		t.Errorf("cost %+v, %v", cost, err)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", a.PID()))
	if err != nil || string(comm) != threadName+"\n" {
		t.Errorf("the process is called %q, %v", comm, err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(a.PID(), 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d is still there: %v", a.PID(), err)
	}
}

// A held workload does nothing, and ends all the same when it is told to.
func TestPause(t *testing.T) {
	a, ctx := start(t), t.Context()
	if _, err := a.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	held, err := a.Pause(ctx)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * pause)
	if now, err := a.Resume(ctx); err != nil || now != held {
		t.Errorf("paused at %+v, resumed at %+v, %v", held, now, err)
	}
	if _, err := a.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// What the workload has against a command is told at its end.
func TestBadCommand(t *testing.T) {
	for _, c := range []string{"pause", "call", "call 0", "call 99999999999", "stop"} {
		a := start(t)
		var into Counts
		if err := a.ask(t.Context(), c, &into); err == nil {
			t.Errorf("%q is answered by %+v", c, into)
		}
		err := a.Close()
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(c)) {
			t.Errorf("%q: the end is %v", c, err)
		}
	}
}

func TestAskInterrupted(t *testing.T) {
	a := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Call(ctx, maxCalls); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was interrupted: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestStartNothing(t *testing.T) {
	if a, err := Start("/nonexistent/kprobe"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("started %v, %v", a, err)
	}
}

// Every request of a client gets the answer that the client expects, and all kinds come.
func TestLoad(t *testing.T) {
	const db = 2
	kinds := map[string]int{}
	missing, touched := 0, 0
	before := looked.Load()
	l := &load{id: db}
	for range 20 * keysPerClient {
		r := l.next()
		if got := handle(db, r.text); got != strconv.Itoa(r.want) {
			t.Fatalf("request %d, %q: %q, want %d", l.n, r.text, got, r.want)
		}
		f := strings.Fields(r.text)
		kinds[f[0]]++
		if r.want == -1 {
			missing++
		}
		if f[0] == "get" && f[2] != "0" {
			touched++
		}
	}
	if kinds["get"] < 1000 || kinds["set"] < 1000 || kinds["sum"] < 50 || len(kinds) != 3 || missing < 100 || touched < 100 {
		t.Errorf("requests %v, %d of them for keys that are not there, %d that touch", kinds, missing, touched)
	}
	if n := looked.Load() - before; n != uint64(kinds["get"]) {
		t.Errorf("%d lookups are counted, of %d", n, kinds["get"])
	}
}

func TestBadRequests(t *testing.T) {
	for _, r := range []string{
		"", "get", "get 0", "get 0 0", "get 0 0 a b", "get x 0 a", "get 4 0 a", "get -1 0 a", "get 0 x a",
		"set 0 a", "set 0 a x", "sum 0 0", "sum 9", "put 0 a 1",
	} {
		if got := handle(1, r); !strings.HasPrefix(got, "error: client 1: ") {
			t.Errorf("%q is answered by %q", r, got)
		}
	}
}

// The functions have the names that the demo asks for, each once.
func TestNames(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := symbol.Open(f, st.Size(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Handle, Get, Step, "kv.answer"} {
		fns, err := im.Lookup(name)
		if err != nil || len(fns) != 1 || fns[0].Lang != symbol.LangGo || fns[0].ABI0 {
			t.Errorf("%s: %v, %v", name, fns, err)
		}
	}
}
