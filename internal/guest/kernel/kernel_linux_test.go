package kernel_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// line is one of /proc/kallsyms.
type line struct {
	addr uint64
	typ  byte
	name string
	mod  string
}

func kallsyms(t *testing.T, g *guest) (own, mods []line) {
	t.Helper()
	if g.own == nil {
		g.own = g.lines(t, "grep -v ']' /proc/kallsyms")
	}
	for _, s := range append(slices.Clone(g.own), g.lines(t, "grep ']' /proc/kallsyms")...) {
		f := strings.Fields(s)
		if len(f) < 3 {
			t.Fatalf("line %q", s)
		}
		a, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		l := line{addr: a, typ: f[1][0], name: f[2]}
		if len(f) > 3 {
			l.mod = strings.Trim(f[3], "[]")
			mods = append(mods, l)
		} else {
			own = append(own, l)
		}
	}
	return own, mods
}

func TestFind(t *testing.T) {
	g, k := booted(t)
	version := strings.TrimSpace(g.run(t, "cat /proc/version"))
	if k.Banner() != version {
		t.Errorf("banner %q, the guest says %q", k.Banner(), version)
	}
	if uname := strings.TrimSpace(g.run(t, "uname -r")); k.Release() != uname {
		t.Errorf("release %q, the guest says %q", k.Release(), uname)
	}
	if k.Layout() != "6.2" {
		t.Errorf("layout %q", k.Layout())
	}
	if err := k.Check(); err != nil {
		t.Error(err)
	}
}

func compareSymbols(t *testing.T, g *guest, k *kernel.Kernel) {
	own, mods := kallsyms(t, g)
	syms := k.Symbols()
	if len(syms) != len(own) {
		t.Fatalf("%d symbols, the guest has %d", len(syms), len(own))
	}
	for i, s := range syms {
		if w := own[i]; s.Name != w.name || s.Addr != w.addr || s.Type != w.typ {
			t.Fatalf("symbol %d is %x %c %s, in the guest %x %c %s", i, s.Addr, s.Type, s.Name, w.addr, w.typ, w.name)
		}
	}
	loaded, err := k.Modules()
	if err != nil {
		t.Fatal(err)
	}
	have := map[line]int{}
	for _, m := range loaded {
		for _, s := range m.Symbols {
			have[line{s.Addr, s.Type | 0x20, s.Name, m.Name}]++
		}
	}
	n := 0
	for _, w := range mods {
		if w.mod == "bpf" || strings.HasPrefix(w.mod, "__builtin") {
			continue
		}
		n++
		w.typ |= 0x20 // upper case means exported there
		if have[w]--; have[w] < 0 {
			t.Errorf("module symbol %+v is missing", w)
		}
	}
	if n == 0 {
		t.Error("no module has a symbol")
	}
	for l, c := range have {
		if c > 0 {
			t.Errorf("module symbol %+v is not in the guest", l)
		}
	}
}

func TestSymbols(t *testing.T) {
	g, k := booted(t)
	compareSymbols(t, g, k)
}

// TestSpace compares what a symbol.Space says of each function's address with kallsyms: of
// names at one address the first.
func TestSpace(t *testing.T) {
	g, k := booted(t)
	own, mods := kallsyms(t, g)
	space := symbol.NewSpace()
	im, err := k.Image()
	if err != nil {
		t.Fatal(err)
	}
	space.Add(im, 0, "")
	loaded, err := k.Modules()
	if err != nil {
		t.Fatal(err)
	}
	text := k.Text()
	for _, m := range loaded {
		im, err := m.Image()
		if err != nil {
			t.Fatal(err)
		}
		space.Add(im, 0, "")
		text = append(text, m.Text)
	}
	first := map[uint64]string{}
	for _, l := range append(own, mods...) {
		in := slices.ContainsFunc(text, func(r interval.Range) bool { return r.Contains(l.addr) })
		if in && strings.ContainsRune("tTwW", rune(l.typ)) && first[l.addr] == "" {
			first[l.addr] = l.name
		}
	}
	if len(first) < 30000 {
		t.Fatalf("only %d functions", len(first))
	}
	for a, name := range first {
		loc, ok := space.SymbolAt(a)
		if !ok || loc.Name != name || loc.Off != 0 {
			t.Errorf("0x%x is %q+%d, in the guest %q", a, loc.Name, loc.Off, name)
		}
	}
	for _, place := range []symbol.Place{{Sym: "vfs_read"}, {Sym: "vfs_read", Offset: 5}, {Mod: "fuse", Sym: "fuse_get_req"}, {Sym: "fuse_get_req"}} {
		r, err := space.Resolve(place)
		if err != nil {
			t.Errorf("%s: %v", place, err)
			continue
		}
		if want := first[r.Addr-place.Offset]; want != place.Sym {
			t.Errorf("%s is at 0x%x, where the guest has %q", place, r.Addr, want)
		}
		if byAddr, err := space.Resolve(symbol.Place{Addr: r.Addr}); err != nil || byAddr.Func != r.Func {
			t.Errorf("0x%x: %v, %v", r.Addr, byAddr.Func, err)
		}
	}
	if _, err := space.Resolve(symbol.Place{Sym: "no_such_function"}); err == nil {
		t.Error("a function that is not there was found")
	}
	if s, _, err := space.Data("", "jiffies"); err != nil || s.IsFunc {
		t.Errorf("jiffies: %+v, %v", s, err)
	}
}

func TestModules(t *testing.T) {
	g, k := booted(t)
	before, err := k.ModulesVersion()
	if err != nil {
		t.Fatal(err)
	}
	compareModules(t, g, k)
	g.run(t, "rmmod dummy")
	if v, err := k.ModulesVersion(); err != nil || v == before {
		t.Errorf("a module has gone and the version is %x, %v", v, err)
	}
	compareModules(t, g, k)
	g.run(t, "insmod "+g.Module("drivers/net/dummy"))
	compareModules(t, g, k)
}

func compareModules(t *testing.T, g *guest, k *kernel.Kernel) {
	t.Helper()
	mods, err := k.Modules()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range mods {
		size := m.Text.End - m.Text.Start
		for _, d := range m.Data {
			size += d.End - d.Start
		}
		got = append(got, fmt.Sprintf("%s %d 0x%x", m.Name, size, m.Text.Start))
	}
	for _, l := range g.lines(t, "cat /proc/modules") {
		f := strings.Fields(l)
		want = append(want, fmt.Sprintf("%s %s %s", f[0], f[1], f[5]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("modules %q, the guest has %q", got, want)
	}
}

func TestBlacklist(t *testing.T) {
	g, k := booted(t)
	p, err := k.Places()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range g.lines(t, "cat /sys/kernel/debug/kprobes/blacklist") {
		var lo, hi uint64
		var name string
		if _, err := fmt.Sscanf(l, "0x%x-0x%x %s", &lo, &hi, &name); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		n++
		for _, a := range []uint64{lo, hi - 1} {
			if why := p.FuncDenied(a, a+1); why == "" {
				t.Errorf("0x%x of %s is not barred", a, name)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d entries", n)
	}
	for name, barred := range map[string]bool{
		"vfs_read": false, "do_sys_openat2": false, "tcp_v4_rcv": false, "schedule": false,
		"exc_page_fault": true, "entry_SYSCALL_64": true, "get_kprobe": true, "__SCT__cond_resched": true,
		"__x86_return_thunk": true, "__x86_indirect_thunk_rax": true,
	} {
		a, ok := k.Addr(name)
		if !ok {
			t.Errorf("no %s", name)
		} else if why := p.FuncDenied(a, a+5); (why != "") != barred {
			t.Errorf("%s: %q", name, why)
		}
	}
	// A part that the compiler split off inherits.
	for _, s := range k.Symbols() {
		base, _, cold := strings.Cut(s.Name, ".cold")
		if a, ok := k.Addr(base); cold && ok && p.FuncDenied(a, a+1) != "" && p.FuncDenied(s.Addr, s.Addr+1) == "" {
			t.Errorf("%s is barred, %s not", base, s.Name)
		}
	}
}

func TestFtraceSites(t *testing.T) {
	g, k := booted(t)
	p, err := k.Places()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{}
	for _, l := range g.lines(t, "cat /sys/kernel/tracing/available_filter_functions") {
		if name := strings.Fields(l)[0]; !strings.HasPrefix(name, "__ftrace_invalid_address__") {
			want[name]++
		}
	}
	name := map[uint64]string{}
	all := slices.Clone(k.Symbols())
	mods, err := k.Modules()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mods {
		all = append(all, m.Symbols...)
	}
	for _, s := range all {
		if name[s.Addr] == "" {
			name[s.Addr] = s.Name
		}
	}
	sites := p.FtraceSites()
	for _, a := range sites {
		if n, ok := p.FtraceSite(a); !ok || n != 5 {
			t.Errorf("0x%x: %d, %t", a, n, ok)
		}
		if name[a] != "" { // what is left of a weak function has no name
			want[name[a]]--
		}
	}
	if len(sites) < 30000 {
		t.Errorf("only %d sites", len(sites))
	}
	off := 0
	for n, c := range want {
		if c != 0 {
			if off++; off < 10 {
				t.Errorf("%s: %d more in the guest", n, c)
			}
		}
	}
	if a, _ := k.Addr("entry_SYSCALL_64"); a != 0 {
		if _, ok := p.FtraceSite(a); ok {
			t.Error("the system call's entry is a site")
		}
	}
}

func TestReserved(t *testing.T) {
	g, k := booted(t)
	free, err := k.Free()
	if err != nil {
		t.Fatal(err)
	}
	const reserved = 1 << 32 // KPF_RESERVED
	flags := g.lines(t, "od -A n -v -t x8 -w8 -N 2048 /proc/kpageflags")
	total := uint64(0)
	for _, r := range free {
		total += r.End - r.Start
		for pa := r.Start; pa < r.End; pa += 4096 {
			f, err := strconv.ParseUint(strings.TrimSpace(flags[pa/4096]), 16, 64)
			if err != nil || f&reserved == 0 {
				t.Errorf("page 0x%x: flags %q, %v", pa, flags[pa/4096], err)
			}
			if len(bytes.Trim(g.Bytes(pa, 4096), "\x00")) != 0 {
				t.Errorf("page 0x%x is in use", pa)
			}
		}
	}
	if total < 256<<10 {
		t.Errorf("only %d bytes", total)
	}
}

// TestTasks stops the guest for the walk: as it goes on, its CPUs change threads meanwhile. Two threads
// of one CPU are said to run while that switches from one to the other (prepare_task and finish_task in
// kernel/sched/core.c), and none that is listed where the one that runs has left the lists: then it stops again.
func TestTasks(t *testing.T) {
	g, k := booted(t)
	cpus := len(strings.Fields(g.run(t, "echo /sys/devices/system/cpu/cpu[0-9]*")))
	if k.CPUs() != cpus {
		t.Errorf("%d CPUs, the guest has %d", k.CPUs(), cpus)
	}
	if err := k.Tasks(func(kernel.Task) bool { return false }); err != nil { // reads the types
		t.Fatal(err)
	}
	var all []kernel.Task
	var running map[int]int // threads by CPU
	oneEach := func() bool {
		for _, n := range running {
			if n != 1 {
				return false
			}
		}
		return len(running) == cpus
	}
	for stops := 0; !oneEach(); stops++ {
		if stops == 100 {
			t.Fatalf("threads that run, by CPU: %v; %d CPUs", running, cpus)
		}
		g.run(t, ":") // the guest has gone on since the last stop
		all, running = nil, map[int]int{}
		err := g.Stopped(func(*qemu.Stop) error {
			return k.Tasks(func(x kernel.Task) bool {
				if all = append(all, x); x.CPU >= 0 {
					running[x.CPU]++
				}
				return true
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	have := map[string]kernel.Task{}
	idle := 0
	for _, x := range all {
		if x.PID == 0 {
			idle++
		}
		have[fmt.Sprintf("%d (%s)", x.PID, x.Comm)] = x
		if x.CPU < 0 && x.Stack.Start != 0 && (x.SP <= x.Stack.Start || x.SP >= x.Stack.End) {
			t.Errorf("%d (%s): stack pointer 0x%x not in its stack %x", x.PID, x.Comm, x.SP, x.Stack)
		}
	}
	if idle != cpus {
		t.Errorf("%d idle threads, %d CPUs", idle, cpus)
	}
	n := 0
	for _, l := range g.lines(t, "cat /proc/[0-9]*/stat") {
		paren := strings.LastIndexByte(l, ')')
		pid, comm, _ := strings.Cut(l[:paren], " (")
		name := fmt.Sprintf("%s (%.15s)", pid, comm) // a kernel thread's is longer there
		if strings.Contains(name, "(cat)") || strings.Contains(name, "kworker") {
			continue // comes and goes
		}
		n++
		if x, ok := have[name]; !ok {
			t.Errorf("thread %s is missing", name)
		} else if x.Stack.Start == 0 && !strings.HasPrefix(l[paren:], ") Z") {
			t.Errorf("thread %s has no stack", name)
		}
	}
	if n < 20 {
		t.Errorf("only %d threads", n)
	}
}

// TestClock has the guest record the same events with its clock and with its counter.
func TestClock(t *testing.T) {
	g, k := booted(t)
	clock, err := k.Clock()
	if err != nil {
		t.Fatal(err)
	}
	g.run(t, `cd /sys/kernel/tracing/instances; mkdir -p a b; echo local >a/trace_clock; echo x86-tsc >b/trace_clock
for i in a b; do echo 1 >$i/events/sched/sched_process_fork/enable; done; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done
for i in a b; do echo 0 >$i/events/sched/sched_process_fork/enable; done; cd /`)
	type event struct {
		cpu  int
		time string
	}
	read := func(inst string) (out []event) {
		for _, l := range g.lines(t, "cat /sys/kernel/tracing/instances/"+inst+"/trace") {
			_, rest, ok := strings.Cut(l, "[")
			if strings.HasPrefix(l, "#") || !ok {
				continue
			}
			cpu, err := strconv.Atoi(rest[:3])
			f := strings.Fields(rest)
			if err != nil || len(f) < 3 {
				t.Fatalf("line %q", l)
			}
			out = append(out, event{cpu, strings.TrimSuffix(f[2], ":")})
		}
		return out
	}
	local, tsc := read("a"), read("b")
	if len(local) < 5 || len(local) != len(tsc) {
		t.Fatalf("%d events and %d", len(local), len(tsc))
	}
	var off []float64
	for i := range local {
		secs, err1 := strconv.ParseFloat(local[i].time, 64)
		cycles, err2 := strconv.ParseUint(tsc[i].time, 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		off = append(off, float64(clock(cycles, tsc[i].cpu))/1e9-secs)
	}
	slices.Sort(off)
	if mid := off[len(off)/2]; mid < -0.003 || mid > 0.003 {
		t.Errorf("the clock differs by %v s", off)
	}
	t.Logf("median difference %.6f s", off[len(off)/2])
	if clock(1, -1) != 0 || clock(1, 1<<20) != 0 {
		t.Error("a CPU that is not there has a time")
	}
}

// TestRecover puts the guest's own kprobes on functions and looks behind them.
func TestRecover(t *testing.T) {
	g, k := booted(t)
	addr, ok := k.Addr("do_sys_openat2")
	if !ok {
		t.Fatal("no do_sys_openat2")
	}
	before := make([]byte, 64)
	if err := k.Read(addr, before); err != nil {
		t.Fatal(err)
	}
	const events = "cd /sys/kernel/tracing; "
	defer g.run(t, events+"echo 0 >events/kprobes/enable; echo >kprobe_events; cd /")
	for _, c := range []struct {
		what, setup string
		size        uint64
		first       byte
	}{
		{"int3", "echo 0 >/proc/sys/debug/kprobes-optimization; echo p:a do_sys_openat2+5 >kprobe_events; echo 1 >events/kprobes/enable", 1, 0xcc},
		{"jump", "echo 1 >/proc/sys/debug/kprobes-optimization", 5, 0xe9},
	} {
		g.run(t, events+c.setup)
		code := make([]byte, len(before))
		for start := time.Now(); code[5] != c.first; time.Sleep(20 * time.Millisecond) {
			if err := k.Read(addr, code); err != nil {
				t.Fatal(err)
			}
			if time.Since(start) > time.Minute {
				t.Fatalf("%s: the guest has put 0x%x there", c.what, code[5])
			}
		}
		ranges, err := k.Recover(addr, code)
		if err != nil || !slices.Equal(ranges, []interval.Range{{Start: addr + 5, End: addr + 5 + c.size}}) {
			t.Errorf("%s: %x, %v", c.what, ranges, err)
		}
		if !bytes.Equal(code, before) {
			t.Errorf("%s: % x, was % x", c.what, code, before)
		}
	}
}

// TestSaved has threads sleep in the kernel: where they will go on is on their stacks.
func TestSaved(t *testing.T) {
	_, k := booted(t)
	lo, ok := k.Addr("schedule")
	if !ok {
		t.Fatal("no schedule")
	}
	n, text := 0, 0
	// The guest runs on: its CPUs are taken to be in user mode.
	err := k.Saved(make([]uint64, k.CPUs()), func(_ *kernel.Task, w uint64) {
		if w >= lo && w < lo+0x200 {
			n++
		}
		if k.InText(w) {
			text++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 10 || text < 10*n/2 {
		t.Errorf("%d threads go on in schedule, %d words are addresses of code", n, text)
	}
}

// TestInterrupted has threads that are preempted in the kernel, beside those that sleep.
func TestInterrupted(t *testing.T) {
	g, k := booted(t)
	asleep, ok := k.Addr("do_nanosleep")
	if !ok {
		t.Fatal("no do_nanosleep")
	}
	g.run(t, `echo full >/sys/kernel/debug/sched/preempt
for i in 1 2 3 4 5 6; do dd if=/dev/zero of=/dev/null bs=8M </dev/null >/dev/null 2>&1 & done; sleep 1000 </dev/null >/dev/null 2>&1 & sleep 1`)
	defer g.run(t, `killall dd sleep; echo voluntary >/sys/kernel/debug/sched/preempt`)
	var from []uint64 // the functions that a thread is preempted from
	for _, s := range k.Symbols() {
		if strings.HasPrefix(s.Name, "preempt_schedule") {
			from = append(from, s.Addr)
		}
	}
	count := func(see func(rsp []uint64, f func(*kernel.Task, uint64)) error) (slept, preempted int) {
		err := see(make([]uint64, k.CPUs()), func(_ *kernel.Task, w uint64) {
			switch {
			case w > asleep && w < asleep+0x140:
				slept++
			case slices.ContainsFunc(from, func(a uint64) bool { return w > a && w < a+0x40 }):
				preempted++
			}
		})
		if err != nil {
			t.Logf("a thread came or went meanwhile: %v", err)
			return 0, 0
		}
		return slept, preempted
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		slept, _ := count(k.Saved)
		wrong, preempted := count(k.Interrupted)
		if slept > 0 && wrong == 0 && preempted > 0 { // a preempted thread may have slept before
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d words of sleeping threads, of which %d are given, and %d of preempted ones", slept, wrong, preempted)
		}
	}
}

func TestArch(t *testing.T) {
	_, k := booted(t)
	a, err := k.Arch()
	if err != nil {
		t.Fatal(err)
	}
	for cpu := range k.CPUs() {
		var b [8]byte
		if err := k.Read(k.PerCPU(cpu)+uint64(a.CPU), b[:4]); err != nil || int(b[0]) != cpu {
			t.Errorf("CPU %d calls itself %d, %v", cpu, b[0], err)
		}
	}
	if a.UserEnd != 0x7ffffffff000 {
		t.Errorf("users end at 0x%x", a.UserEnd)
	}
}

// TestVariants boots other machines and other kernel parameters.
func TestVariants(t *testing.T) {
	for _, c := range []struct {
		cpu, params string
		levels      int
		long        bool // it is tried in long runs
	}{
		{"max", "pti=on", 5, false},
		{"qemu64", "nokaslr nosmp", 4, true},
	} {
		if c.long && os.Getenv("KPROBES_E2E_LONG") == "" {
			continue
		}
		t.Run(c.cpu+" "+c.params, func(t *testing.T) {
			g := newGuest(t, testguest.Boot(t, &testguest.Options{CPUModel: c.cpu, Append: c.params}))
			defer g.Close()
			k, err := kernel.Find(g)
			if err != nil {
				t.Fatal(err)
			}
			if _, levels := k.Root(); levels != c.levels {
				t.Errorf("%d levels of page tables", levels)
			}
			compareSymbols(t, g, k)
			compareModules(t, g, k)
			if _, err := k.Places(); err != nil {
				t.Error(err)
			}
			checkOwner(t, g, k)
			if _, err := k.Arch(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStopped looks at a guest at work whose vCPUs stand still: whose page tables they use,
// where their per-CPU memory is, what is on their stacks.
func TestStopped(t *testing.T) {
	g, k := booted(t)
	if err := k.Tasks(func(kernel.Task) bool { return false }); err != nil { // reads the types
		t.Fatal(err)
	}
	defer g.Background("sh", "-c", "while :; do cat /proc/version >/dev/null; done")()
	_, text := k.Base() // a page of code, which never was a page table
	if k.Owns(text) {
		t.Errorf("code at 0x%x is taken for page tables", text)
	}
	inKernel := 0
	for range 50 {
		err := g.Stopped(func(s *qemu.Stop) error {
			cpus, err := s.CPUs()
			if err != nil {
				return err
			}
			rsp := make([]uint64, k.CPUs())
			for _, c := range cpus {
				rsp[c.Index] = c.RSP
				if !k.Owns(c.CR3) {
					t.Errorf("CPU %d: its CR3 0x%x is taken for another kernel's", c.Index, c.CR3)
				}
				if c.Kernel() && c.RSP>>63 == 1 && c.GSBase>>63 == 1 {
					inKernel++
					if base := k.PerCPU(c.Index); base != c.GSBase {
						t.Errorf("CPU %d has its memory at 0x%x, GS says 0x%x", c.Index, base, c.GSBase)
					}
				}
			}
			return k.Saved(rsp, func(*kernel.Task, uint64) {})
		})
		if err != nil {
			t.Error(err)
		}
	}
	if inKernel == 0 {
		t.Error("no CPU was seen in the kernel")
	}
}

// checkOwner looks at the CPUs' page tables, those of user mode too.
func checkOwner(t *testing.T, g *guest, k *kernel.Kernel) {
	t.Helper()
	defer g.Background("sh", "-c", "while :; do :; done")()
	user := 0
	for i := 0; user == 0 && i < 500; i++ {
		err := g.Stopped(func(s *qemu.Stop) error {
			cpus, err := s.CPUs()
			for _, c := range cpus {
				if !c.Kernel() {
					user++
				}
				if c.CR3 != 0 && !k.Owns(c.CR3) { // 0: never started (nosmp)
					t.Errorf("CPU %d: CR3 0x%x is another kernel's", c.Index, c.CR3)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if user == 0 {
		t.Error("no CPU was seen in user mode")
	}
}
