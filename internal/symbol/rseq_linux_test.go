package symbol

import (
	"debug/elf"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// The sequence of a program is where its labels say, in one that is loaded where it was
// linked, and in those whose descriptors are filled in by relocations of either kind.
func TestSequences(t *testing.T) {
	for _, flags := range [][]string{{"-no-pie"}, {"-pie", "-fPIE"}, {"-pie", "-fPIE", "-Wl,-z,pack-relative-relocs"}} {
		path := testprog.Build(t, "sequence", append(flags, "-pthread")...)
		im := open(t, path, nil)
		got, err := im.Sequences()
		want := Sequence{label(t, path, "add_start"), label(t, path, "add_end"), label(t, path, "add_abort")}
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%v: %x, %v; want %x", flags, got, err, want)
		}
	}
	if got, err := open(t, "/lib/x86_64-linux-gnu/libc.so.6", nil).Sequences(); err != nil || len(got) != 0 {
		t.Errorf("libc: %x, %v", got, err)
	}
}

func label(t *testing.T, path, name string) uint64 {
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
	for _, s := range syms {
		if s.Name == name {
			return s.Value
		}
	}
	t.Fatalf("%s has no label %s", path, name)
	return 0
}
