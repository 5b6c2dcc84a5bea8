package amd64

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

// regFields lists a thread's general registers by number.
func regFields(r *syscall.PtraceRegs) [16]*uint64 {
	return [16]*uint64{
		&r.Rax, &r.Rcx, &r.Rdx, &r.Rbx, &r.Rsp, &r.Rbp, &r.Rsi, &r.Rdi,
		&r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15,
	}
}

// arithFlags are CF PF AF ZF SF OF in rflags.
const arithFlags = 0x8d5

// clobber destroys registers.
func clobber(r *syscall.PtraceRegs, free RegSet, rnd *rand.Rand) {
	for i, f := range regFields(r) {
		if free.Has(Reg(i)) {
			*f = rnd.Uint64()
		}
	}
	if free&Flags != 0 {
		r.Eflags ^= rnd.Uint64() & arithFlags
	}
}

// clobberRun runs a program and destroys before each instruction of the functions wanted
// what free says. It gives the output and how many members of each kind were destroyed.
func clobberRun(t *testing.T, path, entry string, isGo bool, wanted func(string) bool, free func(*Flow, uint64) RegSet) (out string, ok bool, destroyed [17]int) {
	t.Helper()
	im := openImage(t, path)
	flows := map[uint64]*Flow{}
	for _, f := range im.funcs {
		if wanted(f.name) {
			flows[f.addr] = im.analyse(t, f, isGo)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	p := startStepped(t, path)
	at := func(pc uint64) {
		f, found := im.at(pc)
		fl := flows[f.addr]
		if !found || fl == nil {
			return
		}
		s := free(fl, pc)
		for i := range destroyed {
			destroyed[i] += int(s >> i & 1)
		}
		if s != 0 {
			clobber(&p.regs, s, rnd)
			p.store()
		}
	}
	if !p.steps(im.find(t, entry).addr, at) {
		return "", false, destroyed
	}
	out, ok = p.finish()
	return out, ok, destroyed
}

func isFree(fl *Flow, pc uint64) RegSet { return AllRegs &^ fl.LiveAt(pc) }

func ownFunction(name string) bool {
	switch name {
	case "fill", "crc", "sha", "sort", "divide", "wide", "series", "swap", "parse", "run", "leaf":
		return true
	}
	return strings.HasPrefix(name, "sort.") || strings.HasPrefix(name, "parse.")
}

// What is free may be destroyed at every step, and the program computes the same.
func TestFreeRegistersDestroyed(t *testing.T) {
	for _, c := range []struct {
		name, prog, flags string
		long              bool // it is tried in long runs
	}{
		{"gcc_O2", "compute", "CC=gcc -O2", true},
		{"gcc_O3_v3", "compute", "CC=gcc -O3 -march=x86-64-v3", false},
		{"gcc_Os", "compute", "CC=gcc -Os -fno-pie -no-pie", true},
		{"clang_O2", "compute", "CC=clang -O2", false},
		{"ipa_ra", "ipara", "CC=gcc -O2 -fno-inline", false},
	} {
		if c.long && !longRun {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			path := buildFlow(t, c.prog, strings.Fields(c.flags)...)
			want := string(runTool(t, path))
			got, ok, n := clobberRun(t, path, "run", false, ownFunction, isFree)
			if !ok || got != want {
				t.Errorf("output %q, %v, want %q", got, ok, want)
			}
			t.Logf("destroyed %v", n)
			if n[RAX] == 0 || n[RDX] == 0 || n[16] == 0 {
				t.Errorf("destroyed %v: rax, rdx and flags were never free", n)
			}
		})
	}
}

func TestFreeRegistersDestroyedGo(t *testing.T) {
	path := buildGo(t, "-buildmode=exe")
	want := string(runTool(t, path))
	got, ok, n := clobberRun(t, path, "main.run", true, func(name string) bool { return strings.HasPrefix(name, "main.") }, isFree)
	if !ok || got != want {
		t.Errorf("output %q, %v, want %q", got, ok, want)
	}
	if n[RAX] == 0 || n[16] == 0 {
		t.Errorf("destroyed %v: rax and flags were never free", n)
	}
}

// The test above can fail: each register is live somewhere in these functions, and
// destroying it there shows.
func TestLiveRegistersDestroyed(t *testing.T) {
	path := buildFlow(t, "compute", "CC=gcc", "-O2")
	want := string(runTool(t, path))
	for _, r := range []RegSet{Set(RAX), Set(R12), Flags} {
		live := func(fl *Flow, pc uint64) RegSet {
			in, _ := fl.Inst(pc)
			return in.Effects().Reads & r
		}
		if got, ok, _ := clobberRun(t, path, "run", false, ownFunction, live); ok && got == want {
			t.Errorf("registers %#x destroyed where they are read, and nothing happened", r)
		}
	}
}

// Values that gcc keeps in caller-saved registers over a call of a function that does not
// write them (-fipa-ra) are not free anywhere in that function.
func TestLiveAtKeepsWhatTheBodyNeverWrites(t *testing.T) {
	im := openImage(t, buildFlow(t, "ipara", "CC=gcc", "-O2", "-fno-inline"))
	run, leaf := im.analyse(t, im.find(t, "run"), false), im.analyse(t, im.find(t, "leaf"), false)
	kept := keptOverCalls(run, leaf.Addr())
	const callerSaved = 1<<RCX | 1<<RDX | 1<<RSI | 1<<R8 | 1<<R9 | 1<<R10 | 1<<R11
	if kept&callerSaved == 0 {
		t.Fatalf("gcc keeps nothing in caller-saved registers over the call of leaf (kept %#x): the test needs another program", kept)
	}
	t.Logf("run keeps %#x over its call of leaf", kept&callerSaved)
	var written RegSet
	for a, in := range leaf.All() {
		written |= in.Effects().Writes
		if free := freeAt(leaf, a); free&kept != 0 {
			t.Errorf("leaf+%d: %#x is called free, and run needs it", a-leaf.Addr(), free&kept)
		}
	}
	if free := freeAt(leaf, leaf.Addr()); free == 0 || free&^written != 0 {
		t.Errorf("free at leaf's entry: %#x, of what it writes: %#x", free, written)
	}
}

// keptOverCalls gives what a function reads behind a call of callee without having set it
// there, along the straight line.
func keptOverCalls(fl *Flow, callee uint64) (kept RegSet) {
	var after bool
	var set RegSet
	for a, in := range fl.All() {
		if t, ok := in.Target(a); ok && in.Kind == KindCall && t == callee {
			after, set = true, Set(RAX)
			continue
		}
		if after {
			e := in.Effects()
			kept |= e.Reads &^ set
			set |= e.Writes
		}
	}
	return kept
}
