package e2e

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// symbolsOf gives the link-time addresses of all symbols of a program.
func symbolsOf(t testing.TB, path string) map[string]uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]uint64{}
	for _, s := range slices.Backward(syms) { // of two, the first
		at[s.Name] = s.Value
	}
	return at
}

// symbolOf finds the link-time address of any symbol of a program.
func symbolOf(t testing.TB, path, name string) uint64 {
	t.Helper()
	at, ok := symbolsOf(t, path)[name]
	if !ok {
		t.Fatalf("%s has no symbol %s", path, name)
	}
	return at
}

// lastCounts decodes the last line of a program that ran under the command.
func lastCounts(t testing.TB, out string) map[string]uint64 {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var n map[string]uint64
	if err := json.NewDecoder(bytes.NewBufferString(lines[len(lines)-1])).Decode(&n); err != nil {
		t.Fatalf("%v in %.1000q", err, out)
	}
	return n
}
