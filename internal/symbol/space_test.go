package symbol

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const libSource = `
int lib_count = 4;
__attribute__((noinline)) int lib_work(int x) { return x * lib_count + 1; }
__attribute__((noinline)) int leaf(int x) { return lib_work(x) + 1; }
static __attribute__((noinline,used)) int only_local(int x) { return x + 2; }
int (*keep)(int) = only_local;
`

const (
	mainBias = 0x555500000000
	libBias  = 0x7f1200000000
	lib2Bias = 0x7f1300000000
)

// testSpace is a program with two shared objects that have the same functions but one.
func testSpace(t *testing.T) (s *Space, prog, lib, lib2 *Module) {
	t.Helper()
	s = NewSpace()
	const local = "static __attribute__((noinline,used)) int second(int x) { return x + 3; }"
	libPath := build(t, "gcc", libSource+local, "-O1", "-shared", "-fPIC", "-Wl,-soname,libwork.so.3")
	lib2Path := build(t, "gcc", libSource+"int second(int x) { return x; }", "-O1", "-shared", "-fPIC")
	prog = s.Add(open(t, buildC(t, "pie"), noDebug), mainBias, "prog")
	lib = s.Add(open(t, libPath, noDebug), libBias, "libwork-2.31.so.3.1")
	lib2 = s.Add(open(t, lib2Path, noDebug), lib2Bias, "libother.so.1")
	return s, prog, lib, lib2
}

func TestResolveSymbols(t *testing.T) {
	s, prog, lib, lib2 := testSpace(t)
	leaf := one(t, prog.Image, "leaf")
	for _, c := range []struct {
		place Place
		mod   *Module
		fn    string
		off   uint64
	}{
		{Place{Sym: "leaf"}, prog, "leaf", 0},
		{Place{Sym: "leaf", Offset: 3}, prog, "leaf", 3},
		{Place{Sym: "leaf", Offset: leaf.Size - 1}, prog, "leaf", leaf.Size - 1},
		{Place{Mod: "prog", Sym: "leaf"}, prog, "leaf", 0},
		{Place{Mod: "libwork.so.3", Sym: "leaf"}, lib, "leaf", 0},
		{Place{Mod: "libwork-2.31.so.3.1", Sym: "leaf"}, lib, "leaf", 0},
		{Place{Mod: "libwork.so", Sym: "leaf"}, lib, "leaf", 0},
		{Place{Mod: "libwork", Sym: "leaf"}, lib, "leaf", 0},
		{Place{Mod: "libother", Sym: "leaf"}, lib2, "leaf", 0},
		{Place{Mod: lib2.Image.Path(), Sym: "leaf"}, lib2, "leaf", 0},
		{Place{Sym: "second"}, lib2, "second", 0},
	} {
		r, err := s.Resolve(c.place)
		if err != nil {
			t.Errorf("%v: %v", c.place, err)
			continue
		}
		want := one(t, c.mod.Image, c.fn)
		if r.Module != c.mod || r.Func != want || r.Offset != c.off || r.Vaddr != want.Addr+c.off || r.Addr != r.Vaddr+c.mod.Bias {
			t.Errorf("%v: %+v, want %s+%d in %s", c.place, r, c.fn, c.off, c.mod.Name)
		}
	}
}

func TestResolveAddresses(t *testing.T) {
	s, prog, lib, _ := testSpace(t)
	leaf, work := one(t, prog.Image, "leaf"), one(t, lib.Image, "lib_work")
	fileOff, ok := lib.Image.FileOff(work.Addr)
	if !ok {
		t.Fatal("lib_work has no file offset")
	}
	for _, c := range []struct {
		place Place
		mod   *Module
		fn    *Func
		off   uint64
	}{
		{Place{Addr: leaf.Addr}, prog, leaf, 0},
		{Place{Addr: leaf.Addr + 2}, prog, leaf, 2},
		{Place{Addr: leaf.Addr + mainBias}, prog, leaf, 0},
		{Place{Addr: work.Addr + libBias + 1}, lib, work, 1},
		{Place{Mod: "libwork", Addr: work.Addr}, lib, work, 0},
		{Place{Path: lib.Image.Path(), Addr: fileOff}, lib, work, 0},
		{Place{Path: filepath.Join("/", filepath.Base(filepath.Dir(lib.Image.Path())), "prog"), Addr: fileOff}, lib, work, 0},
	} {
		r, err := s.Resolve(c.place)
		if err != nil || r.Module != c.mod || r.Func != c.fn || r.Offset != c.off || r.Addr != c.fn.Addr+c.off+c.mod.Bias {
			t.Errorf("%v: %+v, %v", c.place, r, err)
		}
		loc, ok := s.SymbolAt(r.Addr)
		if !ok || loc.Func != c.fn || loc.Off != c.off || loc.Size != c.fn.Size || loc.Module != c.mod {
			t.Errorf("SymbolAt(0x%x) = %+v, %v", r.Addr, loc, ok)
		}
	}
}

func TestResolveRefusals(t *testing.T) {
	s, prog, lib, _ := testSpace(t)
	leaf := one(t, prog.Image, "leaf")
	data, err := prog.Image.Data("counter")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		place Place
		is    error
		says  string
	}{
		{Place{Sym: "leaf", Offset: leaf.Size}, syscall.EINVAL, "behind the end"},
		{Place{Sym: "laef"}, syscall.ENOENT, `"leaf"`},
		{Place{Sym: "lib_work"}, syscall.EADDRNOTAVAIL, "libother.so.1:0x"},
		{Place{Sym: "only_local"}, syscall.EADDRNOTAVAIL, "MODULE:SYMBOL"},
		{Place{Mod: "libnone", Sym: "leaf"}, ErrNoModule, "libother.so.1"},
		{Place{Mod: "libwork", Sym: "split"}, syscall.ENOENT, "split"},
		{Place{Addr: data.Addr}, ErrNotMapped, "0x"},
		{Place{Addr: 0x1234567890}, ErrNotMapped, "bias"},
		{Place{Mod: "libwork", Addr: 0x10000000}, ErrNotMapped, "libwork"},
		{Place{Path: "/no/such/file", Addr: 0x1000}, ErrNoModule, "no such file"},
		{Place{Path: lib.Image.Path(), Addr: 0}, ErrNotMapped, "executable"},
		{Place{Path: "prog", Addr: 0x1000}, ErrNoModule, "no such file"},
	} {
		r, err := s.Resolve(c.place)
		if !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%v: %+v, %v, want %v and %q", c.place, r, err, c.is, c.says)
		}
	}
	if _, err := NewSpace().Resolve(Place{Sym: "leaf"}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("empty space: %v", err)
	}
	if _, err := NewSpace().Resolve(Place{Addr: 0x1000}); !errors.Is(err, ErrNotMapped) {
		t.Errorf("empty space: %v", err)
	}
}

func TestSpaceData(t *testing.T) {
	s, prog, lib, _ := testSpace(t)
	if sym, addr, err := s.Data("", "counter"); err != nil || addr != sym.Addr+mainBias || sym.Size != 4 || addr == mainBias {
		t.Errorf("counter: %+v, 0x%x, %v", sym, addr, err)
	}
	if sym, addr, err := s.Data("", "lib_count"); err != nil || addr != sym.Addr+libBias {
		t.Errorf("lib_count: %+v, 0x%x, %v", sym, addr, err)
	}
	if _, addr, err := s.Data("libother", "lib_count"); err != nil || addr < lib2Bias {
		t.Errorf("libother:lib_count: 0x%x, %v", addr, err)
	}
	if sym, addr, err := s.Data("", "leaf"); err != nil || !sym.IsFunc || addr != one(t, prog.Image, "leaf").Addr+mainBias {
		t.Errorf("leaf: %+v, 0x%x, %v", sym, addr, err)
	}
	if _, _, err := s.Data("", "no_such"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no_such: %v", err)
	}
	s.Remove(lib)
	if len(s.Modules()) != 2 || s.Main() != prog {
		t.Errorf("modules %v after Remove", s.Modules())
	}
	if _, ok := s.SymbolAt(one(t, lib.Image, "leaf").Addr + libBias); ok {
		t.Error("a removed module still has symbols")
	}
	if _, err := s.Module("libwork"); !errors.Is(err, ErrNoModule) {
		t.Errorf("removed module: %v", err)
	}
}

// TestBias finds the bias from the mapping that the kernel makes of an executable segment.
func TestBias(t *testing.T) {
	for _, path := range []string{buildC(t, "pie"), buildC(t, "nopie"), build(t, "clang", cSource, "-O1", "-fuse-ld=bfd", "-Wl,-z,noseparate-code"), llvm(t), redis} {
		im := open(t, path, noDebug)
		found := 0
		for _, g := range im.Segments() {
			start, off := g.Vaddr&^0xfff+mainBias, g.Off&^0xfff
			if !g.Exec {
				continue
			}
			found++
			if bias, ok := im.Bias(start, off); !ok || bias != mainBias {
				t.Errorf("%s: segment %+v: bias 0x%x, %v", path, g, bias, ok)
			}
		}
		if _, ok := im.Bias(0x1000, 1<<40); ok || found == 0 {
			t.Errorf("%s: %d executable segments; a mapping behind the end has a bias: %v", path, found, ok)
		}
	}
}

// TestConcurrentUse lets many goroutines be the first to need the tables.
func TestConcurrentUse(t *testing.T) {
	im, err := openBytes(t, buildC(t, "pie"))
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpace()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m := s.Add(im, mainBias, "")
			fns, err := im.Lookup("leaf")
			if err != nil {
				t.Error(err)
				return
			}
			if _, ok := s.SymbolAt(fns[0].Addr + mainBias); !ok {
				t.Error("leaf has no symbol")
			}
			if _, err := im.Data("counter"); err != nil {
				t.Error(err)
			}
			if len(s.Modules()) > 1 {
				s.Remove(m)
			}
		})
	}
	wg.Wait()
}
