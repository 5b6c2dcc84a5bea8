package e2e

import (
	"debug/elf"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// inside is a program that does the same in every run, down to the addresses of its memory:
// it starts without address space randomisation, with the same environment.
type inside struct {
	path   string
	args   []string
	env    []string
	stdin  string // a file
	fresh  func(testing.TB)
	output func(string) string // takes out what differs between two runs
	starts bool                // a probe at a function's start stands at its start
	nops   bool                // instructions that do nothing count too
	main   bool                // only the first thread: its stack lies at the same place in every run
	moves  bool                // what it maps for itself lies elsewhere beside the memory of probes
}

// insideRegs are the registers that are compared, as a definition names them, and those of
// registers.py in the same order.
var insideRegs = []string{
	"ax", "bx", "cx", "dx", "si", "di", "bp", "sp",
	"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "flags",
}

// insideFlags are CF PF AF ZF SF DF OF: the others belong to the debugger and the kernel.
const insideFlags = 0xcd5

// values are the registers at a insn's first run.
type values [17]uint64

// insn is an instruction.
type insn struct {
	addr uint64 // in the file
	fn   string // its symbol, if it has one
	off  uint64 // from there
	text string
}

// What probes recorded at random instructions of redis-server is what gdb reads there.
func TestInsideRedis(t *testing.T) {
	t.Parallel()
	server, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is missing: apt-get install redis-server")
	}
	dir := t.TempDir()
	conf := "port 0\nunixsocket " + dir + "/s\ndir " + dir + "\nappendonly yes\nappendfilename a\nsave \"\"\n"
	write(t, filepath.Join(dir, "conf"), conf)
	p := &inside{path: server, args: []string{filepath.Join(dir, "conf")}, starts: true, main: true}
	p.fresh = func(t testing.TB) {
		if err := os.MkdirAll(filepath.Join(dir, "appendonlydir"), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "appendonlydir/a.manifest"), "file a.1.incr.aof seq 1 type i\n")
		write(t, filepath.Join(dir, "appendonlydir/a.1.incr.aof"), redisCommands())
	}
	stamp := regexp.MustCompile(`(?m)^\d+:(\w) .*?\.\d{3} |pid=\d+|\d+\.\d+ seconds`)
	p.output = func(s string) string { return stamp.ReplaceAllString(s, "$1") }
	p.check(t)
}

// What probes recorded at random instructions of a Go program is what gdb reads there, in its
// runtime too.
func TestInsideGo(t *testing.T) {
	t.Parallel()
	p := &inside{path: testprog.Build(t, "gowork"), args: []string{"1"}, stdin: tempFile(t, "stdin"), moves: true}
	p.env = []string{"GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1"}
	write(t, p.stdin, "go 8\nquit\n")
	p.fresh = func(testing.TB) {}
	p.output = func(s string) string { return s }
	p.check(t)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// redisCommands is an append-only file: the server runs it before it listens to anybody.
func redisCommands() string {
	var b strings.Builder
	do := func(words ...string) {
		fmt.Fprintf(&b, "*%d\r\n", len(words))
		for _, w := range words {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	do("SELECT", "0")
	for i := range 20 {
		n := strconv.Itoa(i)
		for _, c := range []string{
			"SET k" + n + " v" + n, "RPUSH l " + n, "LPUSH l x" + n, "ZADD z " + n + ".5 m" + n, "HSET h f" + n + " v" + n,
			"SADD s " + n, "SADD words w" + n, "XADD st " + n + "-1 a b", "GEOADD g 13." + n + " 38.1 p" + n, "INCR c",
			"INCRBYFLOAT f 1.25", "APPEND a zz", "SETRANGE r " + n + " abc", "PFADD hll e" + n, "SETBIT b " + n + " 1",
			"GETRANGE r 1 5", "EXPIRE k" + n + " 1000", "PERSIST k" + n, "LINDEX l " + n, "ZRANK z m" + n, "HINCRBY h n 3",
		} {
			do(strings.Fields(c)...)
		}
	}
	for _, c := range []string{
		"SORT l ALPHA", "SINTERSTORE s2 s words", "SUNIONSTORE s3 s words", "ZUNIONSTORE z2 2 z z", "ZRANGEBYSCORE z 1 9 WITHSCORES",
		"ZREVRANGE z 0 -1", "LRANGE l 0 -1", "HGETALL h", "SMEMBERS s", "XRANGE st - +", "XGROUP CREATE st grp 0", "BITOP NOT b2 b",
		"BITCOUNT b", "BITFIELD b GET u8 0", "GEOSEARCH g FROMMEMBER p1 BYRADIUS 100 km ASC", "PFCOUNT hll", "LCS k1 k2", "COPY z z3",
		"RENAME z3 z4", "OBJECT ENCODING z", "INFO", "CONFIG GET *", "COMMAND COUNT", "SCAN 0", "KEYS *", "MEMORY USAGE l", "LINSERT l BEFORE 3 y",
		"LREM l 1 4", "LTRIM l 1 9", "ZREMRANGEBYRANK z 0 3", "SPOP s2", "GETDEL k3", "CLIENT LIST", "TYPE h", "XTRIM st MAXLEN 5", "DBSIZE",
	} {
		do(strings.Fields(c)...)
	}
	do("EVAL", `local s = 0 for i = 1, 20 do s = s + i; redis.call('set', 'q'..i, s) end
redis.log(redis.LOG_WARNING, cjson.encode({s, redis.call('lrange', 'l', 0, -1), redis.call('zrange', 'z2', 0, -1, 'withscores'),
redis.call('get', 'f'), redis.call('get', 'r'), redis.call('pfcount', 'hll'), redis.call('bitcount', 'b2'), #cmsgpack.pack({1, 'a', s})}))`, "0")
	do("SHUTDOWN", "NOSAVE", "NOW")
	return b.String()
}

// check compares the registers at random instructions that the program runs.
func (p *inside) check(t *testing.T) {
	want := 60
	if long {
		want = 1000
	}
	all := p.instructions(t)
	rng := rand.New(rand.NewPCG(2, 5))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	first := map[uint64]values{}
	var ran []insn
	for chunk := range slices.Chunk(all, insideChunk) {
		maps.Copy(first, p.gdb(t, chunk))
		ran = append(ran, slices.DeleteFunc(chunk, func(a insn) bool { _, ok := first[a.addr]; return !ok })...)
		if len(ran) >= want {
			break
		}
	}
	if len(ran) < want {
		t.Fatalf("only %d of all %d instructions run", len(ran), len(all))
	}
	ran = ran[:want]
	c := &comparison{inside: p, first: first, second: p.gdb(t, ran), tactics: map[string]int{}, barred: map[string]int{}}
	c.compare(t, ran)
}

// insideChunk is the number of places that gdb is given at once: more take it too long.
const insideChunk = 2000

// instructions lists the program's instructions as objdump sees them, without those that
// only fill gaps.
func (p *inside) instructions(t testing.TB) []insn {
	t.Helper()
	o := run(t, exec.Command("objdump", "-d", "--no-show-raw-insn", "-j", ".text", p.path))
	if o.code != 0 {
		t.Fatalf("objdump (apt-get install binutils): %v", o)
	}
	var out []insn
	start, fn, at := false, "", uint64(0)
	for l := range strings.Lines(o.stdout) {
		addr, text, ok := strings.Cut(strings.TrimSpace(l), ":\t")
		if !ok {
			if m := label.FindStringSubmatch(l); m != nil {
				start, fn = true, m[2]
				at, _ = strconv.ParseUint(m[1], 16, 64)
			}
			continue
		}
		n, err := strconv.ParseUint(addr, 16, 64)
		if err == nil && (p.starts || !start) && (p.nops || !strings.Contains(text, "nop")) && !strings.Contains(text, "int3") {
			out = append(out, insn{addr: n, fn: fn, off: n - at, text: text})
		}
		start = false
	}
	return out
}

// label is the line of objdump that begins a function.
var label = regexp.MustCompile(`^([0-9a-f]+) <(.*)>:`)

// bias is where a position-independent program is loaded without randomisation
// (ELF_ET_DYN_BASE of Linux on x86-64).
func (p *inside) bias(t testing.TB) uint64 {
	t.Helper()
	f, err := elf.Open(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Type == elf.ET_DYN {
		return 0x555555554000
	}
	return 0
}

// start prepares a run of the program under another, which gets these arguments.
func (p *inside) start(t testing.TB, path string, args ...string) outcome {
	t.Helper()
	p.fresh(t)
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"HOME=/", "PATH=/usr/bin:/bin"}, p.env...)
	if p.stdin != "" {
		in, err := os.Open(p.stdin)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cmd.Stdin = in
	}
	return run(t, cmd)
}

// gdb gives the registers at the first run of each place that is run.
func (p *inside) gdb(t testing.TB, at []insn) map[uint64]values {
	t.Helper()
	out := map[uint64]values{}
	for addr, runs := range p.gdbTimes(t, at, 1) {
		out[addr] = runs[0]
	}
	return out
}

// gdbTimes gives the registers at so many runs of each place, if it has so many.
func (p *inside) gdbTimes(t testing.TB, at []insn, times int) map[uint64][]values {
	t.Helper()
	bias := p.bias(t)
	dir := t.TempDir()
	var list strings.Builder
	for _, a := range at {
		fmt.Fprintf(&list, "%x\n", a.addr+bias)
	}
	write(t, filepath.Join(dir, "places"), list.String())
	records := filepath.Join(dir, "records")
	var args []string
	if p.main {
		args = append(args, "MAIN=1")
	}
	args = append(args, fmt.Sprint("TIMES=", times), "PLACES="+filepath.Join(dir, "places"), "RECORDS="+records, "gdb", "-nx", "-batch", "-x", "testdata/registers.py", "--args", p.path)
	o := p.start(t, "/usr/bin/env", append(args, p.args...)...)
	text, err := os.ReadFile(records)
	if err != nil || o.code != 0 {
		t.Fatalf("gdb (apt-get install gdb): %v, %v", err, o)
	}
	out := map[uint64][]values{}
	for l := range strings.Lines(string(text)) {
		addr, v := hexWords(t, strings.Fields(l))
		out[addr-bias] = append(out[addr-bias], v)
	}
	return out
}

func hexWords(t testing.TB, words []string) (first uint64, v values) {
	t.Helper()
	if len(words) != 1+len(v) {
		t.Fatalf("gdb wrote %q", words)
	}
	for i, w := range words {
		n, err := strconv.ParseUint(w, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = n
		} else {
			v[i-1] = n
		}
	}
	return first, v
}

// recorded is what a run of the program with probes gave.
type recorded struct {
	values  map[uint64]values // of the first hit
	totals  map[string]total
	refused map[uint64]string
	output  string
}

// A refusal names the line of a definition, or the function and the offset in it.
var (
	refusedLine = regexp.MustCompile(`(?m)line (\d+), column.*$`)
	refusedCode = regexp.MustCompile(`(?m)^kprobe: (\S+)\+(0x[0-9a-f]+): .*$`)
)

// refuse notes which of the places the command has refused.
func (r *recorded) refuse(at []insn, stderr string) {
	for _, m := range refusedLine.FindAllStringSubmatch(stderr, -1) {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= len(at) {
			r.refused[at[n-1].addr] = m[0]
		}
	}
	for _, m := range refusedCode.FindAllStringSubmatch(stderr, -1) {
		off, _ := strconv.ParseUint(m[2], 0, 64)
		for _, a := range at {
			if strings.TrimSuffix(a.fn, ".abi0") == m[1] && a.off-off < 16 { // the region begins before it, perhaps
				r.refused[a.addr] = m[0]
			}
		}
	}
}

// probe runs the program with a probe at each place that can be probed.
func (p *inside) probe(t testing.TB, at []insn, flags ...string) recorded {
	t.Helper()
	r := recorded{values: map[uint64]values{}, refused: map[uint64]string{}}
	lines := tempFile(t, "lines")
	for {
		defs := tempFile(t, "probes")
		write(t, defs, definitions(at))
		kprobe := command(t, slices.Concat([]string{"trace", "-v", "-o", lines, "--probes", defs}, flags, []string{"--", p.path})...)
		o := p.start(t, "/usr/bin/setarch", append(append([]string{"-R"}, kprobe.Args...), p.args...)...)
		before := len(r.refused)
		r.refuse(at, o.stderr)
		if o.code == 0 {
			r.output, r.totals = o.stdout, totals(o.stderr)
			r.read(t, lines, p.main)
			return r
		}
		if len(r.refused) == before {
			t.Fatalf("kprobe trace: %v", o)
		}
		at = slices.DeleteFunc(slices.Clone(at), func(a insn) bool { return r.refused[a.addr] != "" })
		if len(at) == 0 {
			return r
		}
	}
}

func eventName(addr uint64) string { return fmt.Sprintf("at%x", addr) }

func definitions(at []insn) string {
	var b strings.Builder
	for _, a := range at {
		fmt.Fprintf(&b, "p:%s 0x%x", eventName(a.addr), a.addr)
		for _, reg := range insideRegs {
			fmt.Fprintf(&b, " %s=%%%s:x64", reg, reg)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// read reads the lines of a trace. The first thread is the one that comes first.
func (r *recorded) read(t testing.TB, file string, mainOnly bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first := ""
	for l := range strings.Lines(string(text)) {
		m := traceLine.FindStringSubmatch(strings.TrimSuffix(l, "\n"))
		if m == nil {
			continue
		}
		if first == "" {
			first = m[2]
		}
		if mainOnly && m[2] != first {
			continue
		}
		addr, err := strconv.ParseUint(strings.TrimPrefix(m[3], "at"), 16, 64)
		if _, again := r.values[addr]; again || err != nil {
			continue
		}
		var v values
		args := parseLine(m).args
		for i, reg := range insideRegs {
			if v[i], err = strconv.ParseUint(strings.TrimPrefix(args[reg], "0x"), 16, 64); err != nil {
				t.Fatalf("%s in %q: %v", reg, l, err)
			}
		}
		r.values[addr] = v
	}
}

// comparison is what gdb has read, twice.
type comparison struct {
	*inside
	first, second map[uint64]values
	tactics       map[string]int
	barred        map[string]int // places on the blacklist, by reason
	compared      int
	plain         string // what the program writes without probes
}

// differs lists the registers that were recorded otherwise than gdb reads them. What
// gdb itself reads otherwise in two runs (times, pids, random seeds) tells nothing.
func (c *comparison) differs(a insn, got values) (regs []int, compared int) {
	for i := range got {
		mask := ^uint64(0)
		if insideRegs[i] == "flags" {
			mask = insideFlags
		}
		x, y := c.first[a.addr][i]&mask, c.second[a.addr][i]&mask
		if x != y || c.moves && mapped(x) && mapped(got[i]) {
			continue
		}
		compared++
		if got[i]&mask != x {
			regs = append(regs, i)
		}
	}
	return regs, compared
}

// mapped says whether an address belongs to what the program has mapped for itself: the
// probes' memory is mapped before it, so that it lies elsewhere. Go's runtime also holds such
// addresses less the lowest one that a machine can have (runtime.arenaBaseOffset).
func mapped(addr uint64) bool {
	if addr>>47 == 1 {
		addr += lowestAddress
	}
	return addr>>32 == 0x7fff && addr < 0x7ffff7ff0000
}

// lowestAddress is the one of x86-64 with 48 bits, where kernels are.
const lowestAddress = 0xffff_8000_0000_0000

// compare probes all places at once and compares. A probe may put anything into a register
// that the program does not need any more, and so another probe may record that: what
// differs must be right in less company, alone at last.
func (c *comparison) compare(t *testing.T, at []insn) {
	t.Helper()
	c.plain = c.output(c.start(t, "/usr/bin/setarch", append([]string{"-R", c.path}, c.args...)...).stdout)
	differ := c.round(t, at, c.report(t))
	for n := len(at); len(differ) > 0; {
		t.Logf("%d places of %d: again in less company", len(differ), n)
		if n = len(differ); n > 1 {
			half := c.round(t, differ[:n/2], ignore)
			differ = append(half, c.round(t, differ[n/2:], ignore)...)
		}
		if len(differ) == n {
			c.alone(t, differ[0])
			differ = differ[1:]
		}
	}
	c.summary(t, len(at))
}

func ignore(insn, total, []int, values) {}

// aloneRounds is how often a register must be wrong, and the same each time.
const aloneRounds = 5

// aloneTimes is how many runs of a place gdb tells of when it is probed alone.
const aloneTimes = 200

// alone probes one place a few times, beside further runs of gdb. A register that is the
// same each time, but not what gdb reads at any of the place's runs, is wrong, if the kernel's own
// breakpoint at that place does not see it either: which thread comes there first, and what it did
// before, depends on the time that others take. A place that one of the two does not run
// (that depends on the time that something takes) tells nothing, nor do two
// addresses of allocated memory: which one a thread gets depends on when others allocate.
func (c *comparison) alone(t *testing.T, a insn) {
	t.Helper()
	var old values
	var bad []int
	for i := range aloneRounds {
		runs := c.gdbTimes(t, []insn{a}, aloneTimes)[a.addr]
		if len(runs) == 0 {
			return
		}
		c.first[a.addr] = runs[0]
		var now []int
		c.round(t, []insn{a}, func(_ insn, _ total, regs []int, got values) {
			for _, r := range regs {
				again := i == 0 || slices.Contains(bad, r) && got[r] == old[r]
				if again && !slices.ContainsFunc(runs, func(v values) bool { return alike(r, got[r], v[r]) }) {
					now = append(now, r)
				}
			}
			old = got
		})
		if bad = now; len(bad) == 0 {
			return
		}
	}
	if bad = c.unlikeKernel(t, a, bad, old); len(bad) > 0 {
		c.wrong(t, a, bad, old)
	}
}

// unlikeKernel leaves those of the registers that the kernel's breakpoint (uprobe) sees otherwise in
// a program that is started and traced as the probed one is.
func (c *comparison) unlikeKernel(t *testing.T, a insn, regs []int, got values) []int {
	t.Helper()
	seen, hit := c.probe(t, []insn{a}, "--tactic", "uprobe").values[a.addr]
	return slices.DeleteFunc(regs, func(r int) bool { return hit && alike(r, got[r], seen[r]) })
}

// alike says whether a register's value may be what gdb reads.
func alike(reg int, got, want uint64) bool {
	if insideRegs[reg] == "flags" {
		got, want = got&insideFlags, want&insideFlags
	}
	return got == want || mapped(got) && mapped(want)
}

// round probes some places and gives those where some register differs. each is told of
// every place that is probed, without values if it was not run.
func (c *comparison) round(t *testing.T, at []insn, each func(a insn, e total, regs []int, got values)) (differ []insn) {
	t.Helper()
	if len(at) == 0 {
		return nil
	}
	r := c.probe(t, at)
	if got := c.output(r.output); got != c.plain {
		t.Errorf("%d probes: the program wrote\n%.3000s, without them\n%.3000s", len(at), got, c.plain)
	}
	for _, a := range at {
		e, probed := r.totals[eventName(a.addr)]
		got, hit := r.values[a.addr]
		switch {
		case !probed && barredPlace.MatchString(r.refused[a.addr]):
			c.barred[barredPlace.FindStringSubmatch(r.refused[a.addr])[1]]++
			continue
		case !probed && r.refused[a.addr] != "":
			c.tactics["refused"]++
			tell(t, "0x%x %s: refused: %s", a.addr, a.text, r.refused[a.addr])
			continue
		case !probed || e.lost != 0 || e.missed != 0:
			t.Errorf("0x%x %s: %+v", a.addr, a.text, e)
			continue
		case !hit: // it runs only where a debugger makes the program slow
			each(a, e, nil, got)
			continue
		}
		regs, n := c.differs(a, got)
		c.compared += n
		each(a, e, regs, got)
		if len(regs) > 0 {
			differ = append(differ, a)
		}
	}
	return differ
}

// tell logs what is read only by who asks for it (-v): a failure shall not drown in it.
func tell(t *testing.T, format string, args ...any) {
	t.Helper()
	if testing.Verbose() {
		t.Logf(format, args...)
	}
}

// report tells of a place in the first round, with all the others.
func (c *comparison) report(t *testing.T) func(a insn, e total, regs []int, got values) {
	return func(a insn, e total, regs []int, got values) {
		if got == (values{}) {
			c.tactics["not run"]++
			tell(t, "0x%x %-40s tactic=%s not run", a.addr, a.text, e.tactic)
			return
		}
		c.tactics[e.tactic]++
		tell(t, "0x%x %-40s tactic=%s hits=%d otherwise=%d", a.addr, a.text, e.tactic, e.hits, len(regs))
	}
}

// barredPlace is a refusal by the blacklist, and why.
var barredPlace = regexp.MustCompile(`is on the blacklist: (.*); probe what calls it: invalid argument`)

// summary tells how the places were probed: nearly all must have been that are not on the
// blacklist. Some run only where a debugger makes the program slow, most in Go's runtime.
func (c *comparison) summary(t *testing.T, places int) {
	t.Helper()
	t.Logf("%d places, %d registers compared, by tactic: %v; on the blacklist: %v", places, c.compared, c.tactics, c.barred)
	if c.compared < 10*places {
		t.Errorf("%d registers of %d places were compared: gdb reads too few of them twice alike", c.compared, places)
	}
	if n := c.tactics["refused"]; n*100 > places {
		t.Errorf("%d of %d places were refused: more than 1 %%", n, places)
	}
	limit := places / 50
	if c.moves {
		limit = places / 5
	}
	if n := c.tactics["not run"]; n > limit {
		t.Errorf("%d of %d places were not run", n, places)
	}
	var barred int
	for _, n := range c.barred {
		barred += n
	}
	if barred*50 > places {
		t.Errorf("%d of %d places are on the blacklist", barred, places)
	}
}

func (c *comparison) wrong(t *testing.T, a insn, regs []int, got values) {
	t.Helper()
	for _, i := range regs {
		t.Errorf("0x%x %s: %s was recorded as %#x, gdb reads %#x", a.addr, a.text, insideRegs[i], got[i], c.first[a.addr][i])
	}
}
