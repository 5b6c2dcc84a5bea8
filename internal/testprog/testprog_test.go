package testprog

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// counted is what a program must count after one command.
type counted struct {
	program string
	args    []string
	command string
	want    map[string]uint64
}

// Each program, unprobed, counts what its source says, and finds nothing bad. What a
// program counts is what tests compare probes with, so it is pinned here.
func TestProgramsCount(t *testing.T) {
	work := map[string]uint64{"f_lea": 400, "bad": 0}
	for _, f := range strings.Fields("f_endbr f_push f_nop5 f_patch f_ret f_ptr f_str f_six f_small f_pair f_big f_double") {
		work[f] = 200
	}
	masked := map[string]uint64{"masked_work": 200, "in_masked": 100, "bad": 0}
	jailed := map[string]uint64{"jailed": 100, "sigsys": 0, "bad": 0}
	uid := fmt.Sprint(os.Getuid())
	for _, c := range []counted{
		{"work", []string{"2"}, "go 100", work},
		{"watch", []string{"3"}, "go 100", map[string]uint64{"rounds": 600}},
		// 40 rounds: the depths 1 to 8, five times.
		{"jmp", nil, "go 40", map[string]uint64{"descend": 180, "returned": 64, "jumped": 116, "bad": 0}},
		{"exc", nil, "go 40", map[string]uint64{
			"descend": 180, "returned": 80, "unwound": 100, "dropped": 100, "rethrown": 20, "caught": 20, "bad": 0,
		}},
		{"cancel", nil, "go 30", map[string]uint64{
			"inside": 30, "returned": 10, "cancelled": 10, "exited": 10, "cleaned": 20, "bad": 0,
		}},
		{"brief", nil, "go 30", map[string]uint64{"brief_work": 30, "bad": 0}},
		{"forker", nil, "go 5", map[string]uint64{
			"forking": 5, "child_work": 5000, "child_work_in_children": 5000, "bad": 0,
		}},
		{"fsbase", nil, "other 5 0x5a", map[string]uint64{"hit": 5, "spoilt": 0}},
		{"fsbase", nil, "share 5", map[string]uint64{"hit": 20, "spoilt": 0}},
		{"fsbase", nil, "child 5", map[string]uint64{"hit": 15, "spoilt": 0}},
		{"scant", nil, "room 0 1", map[string]uint64{"hit": 1}},
		{"vforker", nil, "go 5", map[string]uint64{"vforking": 5, "parent_work": 5, "bad": 0}},
		{"trapuser", nil, "go 50", map[string]uint64{"plain": 100, "narrow": 50, "int3": 50, "raised": 100, "bad": 0}},
		{"segv", nil, "go 50", map[string]uint64{
			"touch": 50, "past": 50, "divide": 50, "undefined": 50, "odd": 50, "killed": 0, "nilread": 100, "dispatch": 50, "jumped": 50, "bad": 0,
		}},
		{"sigmask", []string{"none"}, "go 100", masked},
		{"sigmask", []string{"mask"}, "go 100", masked},
		{"sigmask", []string{"all"}, "go 100", masked},
		{"sigmask", []string{"handler"}, "go 100", masked},
		{"sigmask", []string{"onstack"}, "go 100", masked},
		{"sigmask", []string{"ignore"}, "go 100", masked},
		{"exec", nil, "go 100", map[string]uint64{"gen_work": 100, "generation": 0, "bad": 0}},
		{"exit", nil, "go 100", map[string]uint64{"last_call": 100, "bad": 0}},
		{"seccomp", []string{"strict"}, "go 100", jailed},
		{"seccomp", []string{"kill"}, "go 100", jailed},
		{"seccomp", []string{"errno"}, "go 100", jailed},
		{"seccomp", []string{"trap"}, "go 100", jailed},
		{"seccomp", []string{"thread"}, "go 100", jailed},
		{"seccomp", []string{"blocked"}, "go 100", jailed},
		{"dumpable", []string{uid, "1"}, "go 100", map[string]uint64{"work": 100, "bad": 0}},
		{"dumpable", []string{uid, "0"}, "go 100", map[string]uint64{"work": 100, "bad": 0}},
		{"stand", nil, "go 100", map[string]uint64{"stand": 100, "behind": 100, "first": 100, "second": 100, "third": 100, "bad": 0}},
		{"stand", []string{"mask"}, "go 100", map[string]uint64{"stand": 100, "behind": 100, "first": 100, "second": 100, "third": 100, "bad": 0}},
		{"tight", nil, "go 100", map[string]uint64{"tight": 200, "loops": 10100, "bad": 0}},
		{"cross", nil, "go 100", map[string]uint64{"middle": 100, "near": 100, "far": 100, "bad": 0}},
		{"apart", nil, "go 100", map[string]uint64{"first": 100, "middle": 100, "last": 100, "bad": 0}},
		{"leaver", nil, "call 100", map[string]uint64{"inside": 100, "returned": 100, "left": 0, "bad": 0}},
		{"conform", nil, "deep 9", map[string]uint64{"calls": 1, "value": 9}},
		{"hits", []string{"3"}, "go 100", map[string]uint64{"hit": 300, "nested": 0, "stormed": 0, "bad": 0}},
		{"redzone", nil, "go 100", map[string]uint64{"redzone": 100, "bad": 0}},
		{"gowork", []string{"2"}, "go 64", map[string]uint64{
			"main.Ints": 128, "main.Text": 128, "main.Words": 128, "main.Float": 128, "main.(*Tree).Sum": 576,
			"main.Record": 128, "main.Iface": 128, "main.Deep": 4160, "main.call": 128, "bad": 0,
		}},
	} {
		t.Run(strings.Join(append([]string{c.program}, c.args...), " "), func(t *testing.T) {
			t.Parallel()
			p := Start(t, Build(t, c.program), c.args...)
			same(t, c.command, p.Counts(c.command), c.want)
			var last map[string]uint64
			p.Quit(&last)
			same(t, "quit", last, c.want)
		})
	}
}

func same(t *testing.T, command string, got, want map[string]uint64) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %s is %d, want %d", command, k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: counts %v, want %v", command, got, want)
	}
}

// A program that writes a breakpoint into its own code, and never runs it, keeps it.
func TestOwnbreak(t *testing.T) {
	var last map[string]uint64
	Start(t, Build(t, "ownbreak")).Quit(&last)
	same(t, "quit", last, map[string]uint64{"broken": 1})
}

// What ends in a jump returns what it should, once or twice, and the same callers are seen each
// time.
func TestTails(t *testing.T) {
	p := Start(t, Build(t, "tails"))
	n := p.Counts("go 20")
	for name, want := range map[string]uint64{"direct": 20, "plt": 20, "indirect": 20, "inner": 20, "again": 200, "ping": 100, "pong": 80, "thrower": 20, "bad": 0} {
		if n[name] != want {
			t.Errorf("%s is %d, want %d", name, n[name], want)
		}
	}
	p.Counts("hold 3")
	n = p.Counts("twice 3")
	first := p.Counts("same")["frames"]
	if n["holding"] == 0 || n["twice"] != 3 || first == 0 || p.Counts("same")["frames"] != first || p.Counts("release")["bad"] != 0 {
		t.Errorf("%v", n)
	}
	p.Quit(nil)
}

// What comes back to its entry by a jump counts each time, and what longjmp leaves.
func TestTailBack(t *testing.T) {
	p := Start(t, Build(t, "tailback"))
	for _, c := range []struct {
		command           string
		back, forth, left uint64
	}{
		{"go 10", 150, 100, 0}, {"deep 7", 157, 106, 0}, {"leave 5", 172, 116, 15}, {"hold 5", 187, 126, 15}, {"release", 187, 126, 15},
	} {
		if n := p.Counts(c.command); n["back"] != c.back || n["forth"] != c.forth || n["left"] != c.left || n["bad"] != 0 {
			t.Errorf("%s: %v", c.command, n)
		}
	}
	p.Counts("spin 2")
	if n := p.Counts("rest"); n["bad"] != 0 {
		t.Errorf("%v", n)
	}
	p.Quit(nil)
}

// Threads end inside a function in three ways.
func TestLeaver(t *testing.T) {
	p := Start(t, Build(t, "leaver"))
	for i := range 3 {
		if n, want := p.Counts(fmt.Sprintf("leave %d 4", i)), uint64(4*(i+1)); n["inside"] != want || n["left"] != want || n["bad"] != 0 {
			t.Errorf("way %d: %v", i, n)
		}
	}
	p.Quit(nil)
}

// All threads call all functions as often, when they wait.
func TestToggle(t *testing.T) {
	p := Start(t, Build(t, "toggle"))
	p.Counts("run")
	n := p.Counts("stop")
	if n["t_0"] == 0 || n["t_0"] != n["t_15"] || n["bad"] != 0 || p.Counts("count")["t_7"] != n["t_7"] {
		t.Errorf("%v", n)
	}
	p.Quit(nil)
}

// What stations leave is the same each time, also under timer signals.
func TestBoundary(t *testing.T) {
	p := Start(t, Build(t, "boundary"))
	for _, command := range []string{"signals 1000", "go 300", "block", "go 150", "signals 0"} {
		p.Counts(command)
	}
	if n := p.Counts("count"); n["calls"] != 450 || n["at_plain"] != 450 || n["at_loop"] != 1350 || n["signals"] == 0 || n["bad"] != 0 {
		t.Errorf("%v: %s", n, p.Stderr())
	}
	p.Quit(nil)
}

// Each fault kills as it should, with handlers that serve once and without any.
func TestFaultsKill(t *testing.T) {
	for flags, command := range map[string]string{"16": "die", "9": "once"} {
		p := Start(t, Build(t, "segv"), flags)
		if n := p.Counts(command); n["killed"] != 4 || n["bad"] != 0 {
			t.Errorf("%s: %v", command, n)
		}
		p.Quit(nil)
	}
}

// A sequence that is interrupted is started once more.
func TestSequence(t *testing.T) {
	p := Start(t, Build(t, "sequence", "-pthread"), "8")
	n := p.Counts("go 10000")
	if n["add"] != 80000 || n["tries"] < n["add"] || n["bad"] != 0 {
		t.Errorf("counts %v", n)
	}
	p.Quit(nil)
}

// Each caller-saved register holds a value across the call of leaf: a leaf that destroys it
// spoils every round, once where gcc keeps the value and once where the assembly does.
func TestLeafKeepsNineRegistersLive(t *testing.T) {
	for _, reg := range append(strings.Fields("rax rcx rdx rsi rdi r8 r9 r10 r11"), "") {
		t.Run("clobber "+reg, func(t *testing.T) {
			t.Parallel()
			var flags []string
			if reg != "" {
				flags = []string{"-DCLOBBER=" + reg}
			}
			p := Start(t, Build(t, "leaf", flags...))
			var n map[string]uint64
			for n["rounds"] == 0 {
				n = p.Counts("count")
			}
			p.Quit(&n)
			want := uint64(0)
			if reg != "" {
				want = 2 * n["rounds"]
			}
			if n["bad"] != want || n["leaf"] != 257*n["rounds"] {
				t.Errorf("counts %v, want bad %d, leaf 257 times rounds", n, want)
			}
		})
	}
}

// The functions of work start with the instructions that its source names.
func TestWorkPrologues(t *testing.T) {
	work := Build(t, "work")
	for f, want := range map[string]string{
		"f_lea": "lea", "f_endbr": "endbr64", "f_push": "push", "f_nop5": "nopl", "f_patch": "nop", "f_ret": "ret",
	} {
		out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", "--disassemble="+f, work).Output()
		if err != nil {
			t.Fatalf("objdump (Debian: apt-get install binutils): %v", err)
		}
		_, text, _ := strings.Cut(string(out), "<"+f+">:\n")
		_, inst, _ := strings.Cut(text, ":\t")
		if !strings.HasPrefix(inst, want) {
			t.Errorf("%s starts with %.20q, want %s", f, inst, want)
		}
	}
}

func TestVectorSeesEveryRegister(t *testing.T) {
	p := Start(t, Build(t, "vector"))
	n := p.Counts("go 20")
	if n["vec_leaf"] != 20 || n["bad"] != 0 || n["level"] < 128 {
		t.Errorf("counts %v", n)
	}
}

func TestSigsInterruptsCalls(t *testing.T) {
	p := Start(t, Build(t, "sigs"), "2")
	n, rounds := map[string]uint64{}, uint64(0)
	for ; n["hot_in_handlers"] == 0 && rounds < 100; rounds++ { // on a busy machine the calls may be over before the first signal is sent
		n = p.Counts("go 3000000")
	}
	if n["hot"] != 6000000*rounds+n["hot_in_handlers"] || n["hot_in_handlers"] == 0 || n["bad"] != 0 {
		t.Errorf("counts %v", n)
	}
}

func TestDlOpensBoth(t *testing.T) {
	p := Start(t, Build(t, "dl"))
	for _, lib := range []string{"libdlone", "libdltwo", "libdlone"} {
		p.Ask("cycle "+Build(t, lib), nil)
	}
	open := p.Counts("open " + Build(t, "libdlone"))
	if n := p.Counts("call 5"); n["lib_work"] != 305 || n["opened"] != 4 || n["bad"] != 0 || open["addr"] == 0 {
		t.Errorf("counts %v, open %v", n, open)
	}
}

func TestExecKeepsThePid(t *testing.T) {
	p := Start(t, Build(t, "exec"))
	for generation, command := range []string{"exec", "thread"} {
		p.Send(command)
		if l := p.Line(); l != "ready" {
			t.Fatalf("after %s: %q", command, l)
		}
		if n := p.Counts("go 7"); n["generation"] != uint64(generation)+1 || n["gen_work"] != 7 {
			t.Errorf("after %s: counts %v", command, n)
		}
	}
}

func TestExitStatus(t *testing.T) {
	exit := Build(t, "exit")
	for command, want := range map[string]syscall.WaitStatus{
		"exit 3": 3 << 8, "_exit 4": 4 << 8, "group": 9 << 8, "within": 7 << 8,
		"abort": syscall.WaitStatus(syscall.SIGABRT) | 0x80, "kill 9": 9, "kill 15": 15,
	} {
		t.Run(command, func(t *testing.T) {
			p := Start(t, exit)
			p.Ask("go 10", nil)
			p.Send(command)
			got := p.Wait().Sys().(syscall.WaitStatus)
			if got&^0x80 != want&^0x80 {
				t.Errorf("status %#x, want %#x", got, want)
			}
		})
	}
	p := Start(t, exit)
	if n := p.Counts("main"); n["last_call"] != 0 {
		t.Errorf("counts %v", n)
	}
	if n := p.Counts("go 5"); n["last_call"] != 5 {
		t.Errorf("without its first thread: counts %v", n)
	}
	p.Quit(nil)
}

func TestForkerKeepsChildren(t *testing.T) {
	p := Start(t, Build(t, "forker"))
	var kids []int
	p.Ask("fork 3", &kids)
	for _, pid := range kids {
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("child %d: %v", pid, err)
		}
	}
	n := p.Counts("release")
	if len(kids) != 3 || n["forking"] != 3 || n["child_work_in_children"] == 0 || n["bad"] != 0 {
		t.Errorf("children %v, counts %v", kids, n)
	}
}

func TestBadptrCases(t *testing.T) {
	type testcase struct {
		What, Kind       string
		Addr, Value, Len uint64
	}
	for _, mode := range []string{"open", "blocked"} {
		p := Start(t, Build(t, "badptr"), mode)
		var list struct{ Ptrs, Strs []testcase }
		p.Ask("list", &list)
		n := p.Counts("go")
		if int(n["take_ptr"]) != len(list.Ptrs) || int(n["take_str"]) != len(list.Strs) || n["bad"] != 0 {
			t.Errorf("%s: counts %v, %d pointers, %d strings", mode, n, len(list.Ptrs), len(list.Strs))
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		for _, c := range append(list.Ptrs, list.Strs...) {
			if c.Kind == "ok" != readable(mem, c.Addr, int(max(c.Len+1, 1))) && c.What != "no access" &&
				c.What != "made inaccessible" && c.What != "across the edge" && c.What != "runs over the edge" {
				t.Errorf("%s: %+v: what it says is not so", mode, c)
			}
		}
	}
}

// readable says whether n bytes at addr can be read through /proc/PID/mem, which also
// reads pages that the program itself may not.
func readable(mem *os.File, addr uint64, n int) bool {
	if addr > 1<<62 {
		return false
	}
	got, err := mem.ReadAt(make([]byte, n), int64(addr))
	return err == nil && got == n
}

// The gap is at least as long as every thread was seen stopped, and no longer than the
// time since the reset.
func TestSpinnerSeesAStop(t *testing.T) {
	type answer struct{ Gap, Steps, Ns, Cycles uint64 }
	p := Start(t, Build(t, "spinner"))
	var before, after answer
	p.Ask("reset", &before)
	p.Signal(syscall.SIGSTOP)
	for p.Alive() && !p.Stopped() {
	}
	start := time.Now()
	time.Sleep(5 * time.Millisecond)
	held := uint64(time.Since(start))
	p.Signal(syscall.SIGCONT)
	for (after.Gap < held || after.Steps <= before.Steps) && after.Ns < uint64(patience) {
		p.Ask("gap", &after)
	}
	if after.Gap < held || after.Gap > after.Ns || after.Steps <= before.Steps {
		t.Errorf("stopped for %d ns: before %+v, after %+v", held, before, after)
	}
}

func TestGoserverCounts(t *testing.T) {
	p := Start(t, Build(t, "goserver", "-ldflags=-s -w"))
	if addr := p.Line(); !strings.HasPrefix(addr, "127.0.0.1:") {
		t.Fatalf("address %q", addr)
	}
	n := p.Counts("load 600 4")
	want := map[string]uint64{"main.Handle": 600, "recovered": 200, "bad": 0}
	for k, v := range want {
		if n[k] != v {
			t.Errorf("%s is %d, want %d", k, n[k], v)
		}
	}
	if n["climb_unwound"] == 0 || n["main.Climb"] <= n["climb_unwound"] || n["main.Walk"] == 0 {
		t.Errorf("counts %v", n)
	}
}

// Every source compiles in the forms in which real programs come.
func TestVariantsBuild(t *testing.T) {
	for _, flags := range [][]string{{"-static"}, {"-static-pie", "-fPIE"}, {"-no-pie", "-fno-pie"}, {"-O0"}} {
		p := Start(t, Build(t, "work", flags...), "1")
		if n := p.Counts("go 10"); n["f_push"] != 10 || n["bad"] != 0 {
			t.Errorf("%v: counts %v", flags, n)
		}
	}
}

// The program that asks for the handlers of signals, of which it has none, tells nothing of the answers.
func TestAsks(t *testing.T) {
	if out, err := exec.Command(Build(t, "asks")).Output(); err != nil || string(out) != "asked\n" {
		t.Errorf("it wrote %q: %v", out, err)
	}
}

// The programs of the C library's and OpenSSL's calls make each as often as they say, and each is what it should be.
func TestCallsOfLibraries(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		want  map[string]uint64
	}{
		{"waits", nil, map[string]uint64{"open": 6, "open_failed": 3, "fsync_failed": 3, "connect": 9, "connect_failed": 3, "accept": 3, "accept4": 3, "send": 12, "recv": 24, "recv_failed": 12, "recvmsg": 12, "getaddrinfo": 6, "getaddrinfo_failed": 3, "posix_spawn": 2, "posix_spawn_failed": 1, "posix_spawnp": 1, "system": 2, "system_failed": 1}},
		{"tls", []string{"-lssl", "-lcrypto"}, map[string]uint64{"SSL_connect": 9, "SSL_connect_failed": 6, "SSL_accept": 6, "SSL_read": 4, "SSL_read_failed": 2, "SSL_read_ex": 8, "SSL_read_ex_failed": 4, "SSL_write": 2, "SSL_write_ex": 4, "SSL_shutdown": 6}},
	} {
		var n map[string]uint64
		out, err := exec.Command(Build(t, c.name, c.flags...), "3").Output()
		if err == nil {
			err = json.Unmarshal(out, &n)
		}
		for name, want := range c.want {
			if n[name] != want {
				t.Errorf("%s: %s is %d, want %d: %s, %v", c.name, name, n[name], want, out, err)
			}
		}
	}
}

// The program that reads return addresses finds them where they are; of the one that is profiled
// the C library counts the calls.
func TestCallers(t *testing.T) {
	p := Start(t, Build(t, "callers"))
	if n := p.Counts("go 10"); n["next"] != 10 || n["own"] != 20 || n["over"] != 10 || n["bad"] != 0 {
		t.Errorf("%v", n)
	}
	p.Counts("hold 7")
	p.Counts("open " + Build(t, "libframes"))
	p.Counts("make")
	if n := p.Counts("walk"); n["frames"] != 7 || n["strange"] != 0 {
		t.Errorf("%v", n)
	}
	if n := p.Counts("release"); n["deep"] != 7 || n["bad"] != 0 {
		t.Errorf("%v", n)
	}
	cmd := exec.Command(Build(t, "arcs"))
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "4502500 ") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(cmd.Dir, "gmon.out")); err != nil {
		t.Error(err)
	}
}

// The programs with many threads and with little memory do what they are asked for.
func TestCrowdAndMiser(t *testing.T) {
	if n := Start(t, Build(t, "crowd"), "10").Counts("all 2"); n["calls"] != 20000 || n["interrupted"] != 0 {
		t.Errorf("%v", n)
	}
	p := Start(t, Build(t, "miser"), "100")
	p.Counts("grow 50")
	if n := p.Counts("count 30"); n["miser_step"] != 30 || n["held"] != 150 || n["refused"] != 0 || n["sum"] != 30+3*30*29/2 {
		t.Errorf("%v", n)
	}
}

// The program of opens opens what is there, and what is not.
func TestOpens(t *testing.T) {
	p := Start(t, Build(t, "opens"))
	p.Counts("go 7")
	if n := p.Counts("go 4"); n["calls"] != 11 || n["failed"] != 5 {
		t.Errorf("%v", n)
	}
}

// The program of forkopen counts its calls, and none is wrong.
func TestForkopen(t *testing.T) {
	p := Start(t, Build(t, "forkopen"))
	p.Counts("fork 4")
	if n := p.Counts("open 7"); n["forks"] != 4 || n["opens"] != 7 || n["failed"] != 2 || n["bad"] != 0 {
		t.Error(n)
	}
	p.Quit(&struct{}{})
}

// The program of hits counts the calls of its threads, and those in handlers of signals.
func TestHits(t *testing.T) {
	p := Start(t, Build(t, "hits"), "3", "alt")
	if n := p.Counts("go 50"); n["hit"] != 150 || n["nested"] != 0 || n["bad"] != 0 {
		t.Errorf("%v", n)
	}
	if n := p.Counts("storm 2000"); n["hit"] != 150+3*2000+n["stormed"] || n["bad"] != 0 {
		t.Errorf("%v", n)
	}
	p.Quit(&struct{}{})
}

// The program of sysopen goes on where it was, and tells what its stack held.
func TestSysopen(t *testing.T) {
	p := Start(t, Build(t, "sysopen"))
	p.Counts("go 5")
	n := p.Counts("go 2")
	stack := uint32(n["word"]) // the return address's upper half
	if n["calls"] != 7 || n["failed"] != 3 || stack < 0x5555 || stack > 0x7fff {
		t.Errorf("%v", n)
	}
}

// The program of chowns calls what it is told to.
func TestChowns(t *testing.T) {
	p := Start(t, Build(t, "chowns"))
	p.Counts("chown 7")
	if n := p.Counts("sync 4"); n["chowns"] != 7 || n["syncs"] != 4 {
		t.Errorf("%v", n)
	}
}

// The program of spans counts its calls; how many spans handlers have depends on when their signals come.
func TestSpans(t *testing.T) {
	exe := Build(t, "spans")
	for _, c := range []struct {
		mode    string
		b, f, s uint64
	}{
		{"own", 110, 134, 84},
		{"shared", 104, 104, 104},
	} {
		out, err := exec.Command(exe, "2", "50", "4", c.mode).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var n struct{ Begins, Finishes, Spans, Handled, Jumps uint64 }
		if err := json.Unmarshal(out, &n); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if h := n.Handled; n.Begins != c.b+h || n.Finishes != c.f+h || n.Spans != c.s+h || n.Jumps != 0 {
			t.Errorf("%s: %s", c.mode, out)
		}
	}
}

// The program of stackkeys counts its calls by their way.
func TestStackkeys(t *testing.T) {
	out, err := exec.Command(Build(t, "stackkeys"), "2", "30", "4").CombinedOutput()
	if !strings.HasPrefix(string(out), "{\"direct\":100,\"either\":20,\"down\":60,\"handler\":") || err != nil {
		t.Errorf("%s, %v", out, err)
	}
}

// The program of rate makes no call early.
func TestRate(t *testing.T) {
	p := Start(t, Build(t, "rate"))
	p.Counts("rate 2000000")
	for want := uint64(20_000); want <= 40_000; want += 20_000 {
		if n := p.Counts("go 20000"); n["calls"] != want || n["ns"] < 9_900_000 || n["bad"] != 0 {
			t.Errorf("%d calls, 20000 of them at 2 million a second: %v", want, n)
		}
	}
}

// The program of stacks does the same each time.
func TestStacks(t *testing.T) {
	exe := Build(t, "stacks")
	for range 2 {
		out, err := exec.Command(exe, "3").CombinedOutput()
		if want := "{\"leaf\":76,\"sum\":538}\n"; err != nil || string(out) != want {
			t.Errorf("%v: %s, want %s", err, out, want)
		}
	}
}

// No source is left without a test that runs it.
func TestAllSourcesAreListed(t *testing.T) {
	tested := strings.Fields("apart arcs asks badptr boundary brief callers cancel chowns conform cross crowd dl dumpable exc exec exit forker forkopen fsbase hits jmp leaf leaver libdlone libdltwo libframes lines many miser nests opens ownbreak rate redzone scant seccomp segv sequence sigmask sigs spans spinner stackkeys stacks stand sysopen tailback tails tight timed tls toggle trapuser vector vforker waits watch work prog.h")
	files, err := fs.ReadDir(sources, "src")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range files {
		name := f.Name()
		if ext := filepath.Ext(name); ext != ".h" {
			name = strings.TrimSuffix(name, ext)
		}
		have = append(have, name)
	}
	for _, name := range have {
		if !strings.Contains(" "+strings.Join(tested, " ")+" ", " "+name+" ") {
			t.Errorf("src/%s is not among the programs that a test here runs", name)
		}
	}
}

// failure stands in for a test, to see that a wrong program fails one.
type failure struct {
	*testing.T
	said string
}

func (f *failure) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

func fails(t *testing.T, what, words string, do func(tb TB)) {
	t.Helper()
	f := &failure{T: t}
	defer func() {
		if recover() == nil || !strings.Contains(f.said, words) {
			t.Errorf("%s: said %q, want %q in it", what, f.said, words)
		}
	}()
	do(f)
}

func TestFailuresAreTold(t *testing.T) {
	fails(t, "missing program", "no such file", func(tb TB) { Start(tb, "/nonexistent") })
	fails(t, "missing source", "does not exist", func(tb TB) { Build(tb, "nothing") })
	fails(t, "silent program", "its output ended", func(tb TB) { Start(tb, "/bin/true") })
	fails(t, "other program", `first line "x"`, func(tb TB) { Start(tb, "/bin/echo", "x") })
	fails(t, "status", "ended with exit status 2", func(tb TB) {
		p := Start(tb, "/bin/sh", "-c", "echo ready; read x; echo '{}'; exit 2")
		p.Quit(nil)
	})
	fails(t, "no JSON", "answer", func(tb TB) {
		p := Start(tb, "/bin/sh", "-c", "echo ready; read x; echo hello")
		p.Counts("count")
	})
}

func TestKillEndsAStoppedProgram(t *testing.T) {
	p := Start(t, Build(t, "work"))
	if !p.Alive() {
		t.Fatal("not alive after start")
	}
	p.Signal(syscall.SIGSTOP)
	p.Kill()
	if p.Alive() {
		t.Error("alive after Kill")
	}
}
