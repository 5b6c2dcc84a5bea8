//go:build linux

package kuprobe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/internal/workload"
)

// mounted makes sure that tracefs is there: the tests of this package need root anyway.
func mounted(t testing.TB) {
	t.Helper()
	if _, err := Mount(); err != nil {
		t.Fatalf("%v: run as root", err)
	}
}

func find(t testing.TB, path, symbol string) Place {
	t.Helper()
	p, err := Find(path, symbol, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// opener is one of the ways to place a probe.
type opener func(pl Place) (*Probe, error)

var ways = map[string]opener{
	"perf":          func(pl Place) (*Probe, error) { return pl.Open() },
	"tracefs count": func(pl Place) (*Probe, error) { return Tracefs{Place: pl, Args: "a=%di"}.Open() },
	"tracefs record": func(pl Place) (*Probe, error) {
		return Tracefs{Place: pl, Args: "a=%di b=%si", Record: true}.Open()
	},
}

// Each way counts exactly the calls that the program itself counts, from several threads,
// at entries and at returns, and nothing after it is closed.
func TestCountIsExact(t *testing.T) {
	mounted(t)
	for name, open := range ways {
		for _, fn := range []string{"f_lea", "f_push", "f_endbr", "f_nop5", "f_ret"} {
			for _, ret := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s return=%v", name, fn, ret), func(t *testing.T) {
					program := testprog.Copy(t, testprog.Build(t, "work"))
					p := testprog.Start(t, program, "3")
					p.Ask("go 7", nil)
					pl := find(t, program, fn)
					pl.Return = ret
					probe, err := open(pl)
					if err != nil {
						t.Fatal(err)
					}
					before := p.Counts("count")[fn]
					after := p.Counts("go 500")
					want := after[fn] - before
					if got, err := probe.Count(); err != nil || got != want || want == 0 {
						t.Errorf("count %d, %v, want %d", got, err, want)
					}
					if err := probe.Close(); err != nil {
						t.Error(err)
					}
					if n := p.Counts("go 10"); n["bad"] != 0 {
						t.Errorf("the program found %d wrong results", n["bad"])
					}
				})
			}
		}
	}
}

func TestRecordsHoldTheArguments(t *testing.T) {
	mounted(t)
	program := testprog.Copy(t, testprog.Build(t, "work"))
	p := testprog.Start(t, program, "1")
	probe, err := Tracefs{Place: find(t, program, "f_nop5"), Args: "a=%di:u64 b=%si:u64", Record: true}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	p.Ask("go 5", nil)
	text, err := probe.Records()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if want := fmt.Sprintf(" a=%d b=%d\n", i, i+1); !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}

// Nothing is left in tracefs, whatever happened.
func TestCloseLeavesNothing(t *testing.T) {
	mounted(t)
	program := testprog.Copy(t, testprog.Build(t, "work"))
	pl := find(t, program, "f_lea")
	for name, open := range ways {
		probe, err := open(pl)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := probe.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (Tracefs{Place: pl, Args: "a=%nonsense"}).Open(); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("bad argument: error %v, want one that names it", err)
	}
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(filepath.Join(dir, "uprobe_events"))
	if err != nil || strings.Contains(string(events), program) {
		t.Errorf("uprobe_events: %q, %v", events, err)
	}
	mine, err := filepath.Glob(filepath.Join(dir, "instances", fmt.Sprintf("e%d_*", os.Getpid())))
	if err != nil || len(mine) != 0 {
		t.Errorf("instances left: %v, %v", mine, err)
	}
}

func TestErrors(t *testing.T) {
	mounted(t)
	if err := Available(); err != nil {
		t.Fatal(err)
	}
	if _, err := (Place{Path: "/nonexistent"}).Open(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("perf on no file: error %v, want ENOENT", err)
	}
	if _, err := (Tracefs{Place: Place{Path: "/nonexistent"}}).Open(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("tracefs on no file: error %v, want ENOENT", err)
	}
	if _, err := (Tracefs{Place: Place{Path: "/tmp/a b"}}).Open(); err == nil || !strings.Contains(err.Error(), "copy") {
		t.Errorf("path with a blank: error %v", err)
	}
	if _, err := Find("/bin/true", "nothing", 0); err == nil {
		t.Error("found a symbol that is not there")
	}
	if _, err := Find("/dev/null", "main", 0); err == nil {
		t.Error("found a symbol in no program")
	}
}

// BenchmarkUprobe tells what a hit of the kernel's uprobe with four recorded arguments
// costs on each class of instruction, and what it costs only to count.
func BenchmarkUprobe(b *testing.B) {
	mounted(b)
	built, err := workload.BuildC()
	if err != nil {
		b.Fatal(err)
	}
	program := testprog.Copy(b, built)
	p := testprog.Start(b, program)
	run := func(fn string, calls int) float64 {
		var r workload.Result
		p.Send(fmt.Sprintf("run %s %d 1", fn, calls))
		if err := json.Unmarshal([]byte(p.Line()), &r); err != nil {
			b.Fatal(err)
		}
		return r.Median
	}
	const args = "a=%di b=%si c=%dx d=%cx"
	for _, fn := range []string{"bench_lea", "bench_endbr", "bench_push", "bench_nop5", "bench_ret"} {
		pl := find(b, program, fn)
		for name, open := range map[string]func() (*Probe, error){
			"count":  pl.Open,
			"record": func() (*Probe, error) { return Tracefs{Place: pl, Args: args, Record: true}.Open() },
			"return": func() (*Probe, error) {
				ret := pl
				ret.Return = true
				return Tracefs{Place: ret, Args: "r=$retval", Record: true}.Open()
			},
		} {
			b.Run(strings.TrimPrefix(fn, "bench_")+"/"+name, func(b *testing.B) {
				plain := run(fn, 640000)
				probe, err := open()
				if err != nil {
					b.Fatal(err)
				}
				defer probe.Close()
				b.ResetTimer()
				hit := run(fn, max(b.N, 16000))
				b.ReportMetric(hit-plain, "ns/hit")
			})
		}
	}
}

// A batch counts each of its places, in their order, and leaves nothing.
func TestBatch(t *testing.T) {
	mounted(t)
	program := testprog.Copy(t, testprog.Build(t, "work"))
	p := testprog.Start(t, program, "3")
	before := p.Counts("go 7")
	fns := []string{"f_ret", "f_lea", "f_push", "f_nop5"}
	var places []Place
	for _, fn := range fns {
		places = append(places, find(t, program, fn))
	}
	b, err := OpenAll(places)
	if err != nil {
		t.Fatal(err)
	}
	after := p.Counts("go 300")
	got, err := b.Counts()
	if err != nil {
		t.Fatal(err)
	}
	for i, fn := range fns {
		if want := after[fn] - before[fn]; got[i] != want || want == 0 {
			t.Errorf("%s: %d, want %d", fn, got[i], want)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	places[1].Offset = 1 << 40
	if b, err := OpenAll(places); err == nil {
		t.Errorf("a place that is not in the file: %v", b.Close())
	}
	events, err := os.ReadFile(filepath.Join(b.p.dir, "uprobe_events"))
	if err != nil || strings.Contains(string(events), program) {
		t.Errorf("uprobe_events: %q, %v", events, err)
	}
}
