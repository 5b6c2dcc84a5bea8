package main

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
)

// class is a class of instruction that a probe stands on.
type class struct {
	name     string
	function string  // of package workload: its first instruction is of the class
	faster   float64 // bar: a record is that many times faster than the kernel's
}

// classes are first instructions that cost the kernel differently: it steps lea, endbr64 and ret, emulates push,
// and replaces a 5-byte nop by a call (Linux 6.18).
var classes = []class{
	{"lea", "bench_lea", 100},
	{"endbr64", "bench_endbr", 100},
	{"push", "bench_push", 25},
	{"nop5", "bench_nop5", 10},
	{"ret", "bench_ret", 80},
}

// Bars that a machine's own figures are held against.
const (
	barCount      = 10.0  // ns of a counter
	leastCount    = 0.5   // ns: what is measured below is noise
	barFiltered   = 1.5   // times a counter, of a hit that a filter stops
	barBoth       = 100.0 // ns of entry and return, both recorded
	barTracepoint = 1.5   // times the tracepoint written by hand
	barString     = 30.0  // ns of a record with a string, where it asks the kernel nothing
	barStringAsks = 20.0  // ns of one beyond the question, where it asks
	barModule     = 20.0  // ns of a handler of C that counts
	barPrintk     = 60.0  // ns of one that writes a line with four arguments
	barModuleBoth = 60.0  // ns of two of a return probe, which count
)

// means is whose probe a row measures.
type means string

const (
	meansKprobe     means = "kprobe"
	meansHandler    means = "handler"
	meansUprobe     means = "uprobe"
	meansTracepoint means = "tracepoint"
	meansModule     means = "module"   // handlers of C in the program itself
	meansQuestion   means = "question" // no probe: the system call that a record makes before it reads memory
)

// row is one way to probe.
type row struct {
	name   string // the letters of Linux's documentation, or what else it is
	what   string
	means  means
	tactic arch.Tactic // kprobe: the one that it is about
	count  bool        // it counts and records nothing
	entry  bool        // a probe at the entry
	ret    bool        // a probe at the return
	args   string      // that a record at the entry holds; "": fetchArgs
	filter string      // what a record must pass; "": nothing
}

// fetchArgs are the four arguments that a record holds; a return holds the result.
const (
	fetchArgs     = "a=%di b=%si c=%dx d=%cx"
	fetchReturn   = "v=%ax"
	fetchString   = "s=+0(%dx):string"
	fetchGoString = "s=+16(%dx):gostring"
	fetchNothing  = "a == 0x123456789abcdef" // filters that no hit passes
	fetchNoString = `s ~ "/usr/*/perl"`
)

// Names of rows that others refer to.
const (
	rowCount      = "o count"
	rowFiltered   = "o filtered"
	rowRecord     = "o"
	rowReturn     = "ro"
	rowBoth       = "kr"
	rowBothStep   = "kr step"
	rowBothBoost  = "kr boost"
	rowHandler    = "o handler"
	rowModule     = "o module"
	rowPrintk     = "o printk"
	rowModuleBoth = "kr module"
	rowTracepoint = "tracepoint"
	rowUprobe     = "uprobe"
	rowString     = "o string"
	rowGoString   = "o gostring"
	rowStopped    = "o filtered string"
	rowQuestion   = "question"
)

// rows are the columns of Documentation/trace/kprobes.rst (Probe Overhead) without the jprobes, which only the own
// process has (bench_own.go), and what they are compared with.
var rows = []row{
	{rowCount, "jump, counted", meansKprobe, arch.TacticJump, true, true, false, "", ""},
	{rowFiltered, "jump, a filter stops it", meansKprobe, arch.TacticJump, false, true, false, "", fetchNothing},
	{"k", native.BreakpointName + " and step, recorded", meansKprobe, arch.TacticStep, false, true, false, "", ""},
	{"b", native.BreakpointName + " and detour, recorded", meansKprobe, arch.TacticBoost, false, true, false, "", ""},
	{rowRecord, "jump, recorded", meansKprobe, arch.TacticJump, false, true, false, "", ""},
	{"r", "return, " + native.BreakpointName + " and step", meansKprobe, arch.TacticStep, false, false, true, "", ""},
	{"rb", "return, " + native.BreakpointName + " and detour", meansKprobe, arch.TacticBoost, false, false, true, "", ""},
	{rowReturn, "return, jump", meansKprobe, arch.TacticJump, false, false, true, "", ""},
	{rowBothStep, "entry and return, step", meansKprobe, arch.TacticStep, false, true, true, "", ""},
	{rowBothBoost, "entry and return, boost", meansKprobe, arch.TacticBoost, false, true, true, "", ""},
	{rowBoth, "entry and return, jump", meansKprobe, arch.TacticJump, false, true, true, "", ""},
	{rowString, "jump, a string", meansKprobe, arch.TacticJump, false, true, false, fetchString, ""},
	{rowGoString, "jump, a Go string", meansKprobe, arch.TacticJump, false, true, false, fetchGoString, ""},
	{rowStopped, "jump, a filter on a string", meansKprobe, arch.TacticJump, false, true, false, fetchString, fetchNoString},
	{rowQuestion, "what they ask the kernel", meansQuestion, "", false, true, false, "", ""},
	{rowHandler, "jump, handler in the tracer", meansHandler, arch.TacticJump, true, true, false, "", ""},
	{rowModule, "jump, C handler, counts", meansModule, arch.TacticJump, true, true, false, "", ""},
	{rowPrintk, "jump, C handler, printk", meansModule, arch.TacticJump, false, true, false, "", ""},
	{rowModuleBoth, "entry and return, likewise", meansModule, arch.TacticJump, true, true, true, "", ""},
	{rowTracepoint, "by hand, compiled in", meansTracepoint, "", false, true, false, "", ""},
	{"uprobe count", "the kernel's, counted", meansUprobe, arch.TacticUprobe, true, true, false, "", ""},
	{rowUprobe, "the kernel's, recorded", meansUprobe, arch.TacticUprobe, false, true, false, "", ""},
	{"uretprobe", "the kernel's, return", meansUprobe, arch.TacticUprobe, false, false, true, "", ""},
	{"uprobe+uretprobe", "the kernel's, entry and return", meansUprobe, arch.TacticUprobe, false, true, true, "", ""},
}

// scaled are the rows that are measured against the number of CPUs, on the first class.
var scaled = []string{rowCount, rowRecord, rowReturn, rowTracepoint, rowUprobe}

// traps says whether each hit traps, or waits for another process, so that fewer of them fill
// a round.
func (r *row) traps() bool {
	return r.means == meansUprobe || r.means == meansHandler || r.means == meansKprobe && r.tactic != arch.TacticJump
}

// hitsPerCall is how many hits one call of the probed function makes.
func (r *row) hitsPerCall() uint64 {
	if r.entry && r.ret {
		return 2
	}
	return 1
}

func findRow(name string) *row {
	i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
	return &rows[i]
}

// threadSteps are the numbers of threads of the second table: all up to 8, then doubling,
// and all CPUs.
func threadSteps(cpus int) []int {
	var out []int
	for n := 1; n < cpus; {
		out = append(out, n)
		if n < 8 {
			n++
		} else {
			n *= 2
		}
	}
	return append(out, cpus)
}

const rowSleepable = "k sleepable"
