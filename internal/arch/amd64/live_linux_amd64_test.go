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
	for _, c := range []struct{ name, prog, flags string }{
		{"gcc_O2", "compute", "CC=gcc -O2"},
		{"gcc_O3_v3", "compute", "CC=gcc -O3 -march=x86-64-v3"},
		{"gcc_Os", "compute", "CC=gcc -Os -fno-pie -no-pie"},
		{"clang_O2", "compute", "CC=clang -O2"},
		{"ipa_ra", "ipara", "CC=gcc -O2 -fno-inline"},
	} {
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
	for _, r := range []RegSet{Set(RAX), Set(RBX), Set(RDI), Set(R12), Flags} {
		live := func(fl *Flow, pc uint64) RegSet {
			in, _ := fl.Inst(pc)
			return in.Effects().Reads & r
		}
		if got, ok, _ := clobberRun(t, path, "run", false, ownFunction, live); ok && got == want {
			t.Errorf("registers %#x destroyed where they are read, and nothing happened", r)
		}
	}
}
