package workload

import (
	"strings"
	"testing"
)

func TestProgram(t *testing.T) {
	path, err := BuildC()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(path, "65536")
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Run("bench_traced", 3200, 2)
	if err != nil || r.Calls != 6400 || r.Threads != 2 {
		t.Errorf("run: %+v, %v", r, err)
	}
	if n, err := p.Written(); n != 6400 || err != nil {
		t.Errorf("written: %d, %v", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A program that refuses a command says why, and one that is no workload is not taken for
// one.
func TestProgramErrors(t *testing.T) {
	path, err := BuildC()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run("nothing", 3200, 1); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("unknown function: error %v, want one that names it", err)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "no such function") {
		t.Errorf("end of a workload that failed: %v, want its own words", err)
	}
	for _, path := range []string{"/bin/true", "/bin/pwd", "/nonexistent"} {
		if p, err := Start(path); err == nil {
			t.Errorf("%s was taken for a workload", path)
			_ = p.Close()
		}
	}
}
