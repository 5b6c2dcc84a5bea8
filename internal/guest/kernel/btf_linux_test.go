package kernel_test

import (
	"testing"

	"kprobes.dev/kprobes/internal/btf"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/testguest"
)

// TestFuncTypes compares the types of the kernel and of its modules with those that the guest has in files.
func TestFuncTypes(t *testing.T) {
	g, k := booted(t)
	file := func(name string, base *btf.Spec) *btf.Spec {
		raw, err := g.Read("/sys/kernel/btf/" + name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := btf.Parse([]byte(raw), base)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return s
	}
	// compare compares how functions are declared.
	compare := func(name string, ours, its *btf.Spec, syms []kernel.Symbol) {
		told := 0
		for _, s := range syms {
			a, b := ours.Prototype(s.Name), its.Prototype(s.Name)
			if a != b {
				t.Errorf("%s: %q, the file has %q", name, a, b)
			}
			if a != "" {
				told++
			}
		}
		if told < 5 {
			t.Errorf("%s: %d of %d symbols are declared", name, told, len(syms))
		}
	}
	ours, err := k.FuncTypes()
	if err != nil {
		t.Fatal(err)
	}
	base := file("vmlinux", nil)
	compare("vmlinux", ours, base, k.Symbols())
	mods, err := k.Modules()
	if err != nil || len(mods) < len(testguest.Modules) {
		t.Fatalf("%d modules, %v", len(mods), err)
	}
	for _, m := range mods {
		own, err := m.FuncTypes()
		if err != nil {
			t.Error(err)
			continue
		}
		compare(m.Name, own, file(m.Name, base), m.Symbols)
	}
}
