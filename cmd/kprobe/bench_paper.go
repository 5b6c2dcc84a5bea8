package main

import (
	"fmt"

	"kprobes.dev/kprobes/internal/arch"
)

// Table 1 of "Probing the Guts of Kprobes" (Ottawa Linux Symposium, 2006) has the cost of five kinds of probes with the
// booster and without it. The same is measured here, with jumps beside it: by
// events in another process, and by handlers in Go in the own one, which has jprobes too.

// paperTactics are the columns: without booster, with it, and what came later.
var paperTactics = []arch.Tactic{arch.TacticStep, arch.TacticBoost, arch.TacticJump}

// paperRow is a row of the table.
type paperRow struct {
	name, what string
	process    [3]string  // rows of the other table by tactic; "": there is none
	paper      [2]float64 // ns without booster and with it: Pentium M, 1.5 GHz, Linux 2.6.16
}

var paperRows = []paperRow{
	{"k", "kprobe", [3]string{"k", "b", rowRecord}, [2]float64{570, 260}},
	{"j", "jprobe", [3]string{}, [2]float64{1000, 1050}},
	{"r", "kretprobe", [3]string{"r", "rb", rowReturn}, [2]float64{920, 450}},
	{"kr", "kprobe and kretprobe", [3]string{rowBothStep, rowBothBoost, rowBoth}, [2]float64{990, 860}},
	{"jr", "jprobe and kretprobe", [3]string{}, [2]float64{1400, 1300}},
}

func (p *textPrinter) paperTable(cells []cell) {
	lines := [][]string{
		{"", "events,", "another", "process", "handlers,", "the own", "process", "the paper", "(2006)"},
		{"probe", "step", "boost", "jump", "step", "boost", "jump", "step", "boost"},
	}
	for _, r := range paperRows {
		l := []string{fmt.Sprintf("%-17s %s", r.name, r.what)}
		for _, name := range r.process {
			if name == "" {
				l = append(l, "-")
			} else {
				l = append(l, p.find(cells, name, classes[0].name, 1))
			}
		}
		for _, t := range paperTactics {
			l = append(l, p.findOwn(cells, r.name, t))
		}
		lines = append(lines, append(l, nanos(r.paper[0]), nanos(r.paper[1])))
	}
	p.table("table 1 of the paper: ns per call beyond the unprobed call", lines)
}

// findOwn shows what was measured of a row in the own process.
func (p *textPrinter) findOwn(cells []cell, row string, t arch.Tactic) string {
	for _, c := range cells {
		if c.Where == whereSelf && c.Row == row && c.Tactic == string(t) {
			return p.value(c)
		}
	}
	return ""
}
