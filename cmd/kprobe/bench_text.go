package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// textPrinter writes tables at the end, and on stderr what it is at.
type textPrinter struct {
	w     io.Writer
	m     machine
	class string
	notes []string
}

// table writes rows in columns, the first column to the left and all others to the right.
func (p *textPrinter) table(title string, lines [][]string) {
	var left []string
	width := 0
	for _, l := range lines {
		left = append(left, l[0])
		width = max(width, len(l[0]))
	}
	fmt.Fprintf(p.w, "\n%s\n", title)
	tw := tabwriter.NewWriter(p.w, 8, 0, 2, ' ', tabwriter.AlignRight)
	for i, l := range lines {
		fmt.Fprintf(tw, "%-*s\t%s\t\n", width, left[i], strings.Join(l[1:], "\t"))
	}
	_ = tw.Flush() // an error of p.w shows in the last line of all
}

// value is a cell's cost, or the number of the note that tells why there is none.
func (p *textPrinter) value(c cell) string {
	if c.known() {
		return nanos(c.NS)
	}
	return p.note(c.Why + c.Failed)
}

// note is the number of the note that tells a reason.
func (p *textPrinter) note(why string) string {
	i := slices.IndexFunc(p.notes, func(n string) bool { return sameReason(n, why) })
	if i < 0 {
		i = len(p.notes)
		p.notes = append(p.notes, why)
	}
	return fmt.Sprintf("[%d]", i+1)
}

// places are the parts of a reason that differ from one instruction to the next.
var places = regexp.MustCompile(`column \d+: |\S+\+0x[0-9a-f]+: |0x[0-9a-f]+|\([0-9a-f ]+\)`)

// sameReason says whether two reasons differ only in the place that they are about.
func sameReason(a, b string) bool {
	return places.ReplaceAllString(a, "") == places.ReplaceAllString(b, "")
}

// nanos has one digit behind the point below 100.
func nanos(v float64) string {
	digits := 1
	if v >= 100 {
		digits = 0
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

func (p *textPrinter) find(cells []cell, row, class string, threads int) string {
	for _, c := range cells {
		if c.Where == whereProcess && c.Row == row && c.Class == class && c.Threads == threads {
			return p.value(c)
		}
	}
	return ""
}

// figureValue has two digits behind the point below 10, and none from 100 on.
func figureValue(v float64) string {
	if v < 10 {
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return nanos(v)
}

// ratioOf shows a value, whether it reaches its bar, and the bar.
func ratioOf(rs []ratio, what, class string) string {
	for _, r := range rs {
		if r.What != what || r.Class != class {
			continue
		}
		mark, sign := "!", ">="
		if r.OK {
			mark = "+"
		}
		if r.AtMost {
			sign = "<="
		}
		return fmt.Sprintf("%.1f%s (%s%g)", r.Value, mark, sign, r.Bar)
	}
	return ""
}

func (p *textPrinter) classTable(cells []cell) {
	head := []string{"probe"}
	for _, cl := range classes {
		head = append(head, cl.name)
	}
	lines := [][]string{head}
	for _, r := range rows {
		l := []string{fmt.Sprintf("%-17s %s", r.name, r.what)}
		for _, cl := range classes {
			l = append(l, p.find(cells, r.name, cl.name, 1))
		}
		lines = append(lines, l)
	}
	p.table("ns per call beyond the unprobed call, by the instruction that is probed", lines)
}

func (p *textPrinter) threadTable(cells []cell) {
	steps := threadSteps(p.m.CPUs)
	if len(steps) < 2 {
		fmt.Fprintf(p.w, "\nonly one CPU may be used: nothing to tell of several\n")
		return
	}
	head := []string{"CPUs at once"}
	for _, n := range steps {
		head = append(head, strconv.Itoa(n))
	}
	lines := [][]string{head}
	for _, name := range scaled {
		l := []string{fmt.Sprintf("%-17s %s", name, findRow(name).what)}
		for _, n := range steps {
			l = append(l, p.find(cells, name, classes[0].name, n))
		}
		lines = append(lines, l)
	}
	p.table("ns per call of each thread, "+classes[0].name, lines)
}

func (p *textPrinter) ratioTable(rs []ratio) {
	if len(rs) == 0 {
		return
	}
	var names []string
	for _, r := range rs {
		if !slices.Contains(names, r.What) {
			names = append(names, r.What)
		}
	}
	head := []string{"against the bars"}
	for _, cl := range classes {
		head = append(head, cl.name)
	}
	lines := [][]string{head}
	for _, name := range names {
		l := []string{name}
		for _, cl := range classes {
			l = append(l, ratioOf(rs, name, cl.name))
		}
		lines = append(lines, l)
	}
	p.table("ratios and bars: + reached, ! missed", lines)
}

// figureTable shows the figures that are no cost of a hit.
func (p *textPrinter) figureTable(fs []figure) {
	if len(fs) == 0 {
		return
	}
	lines := [][]string{{"figure", "where", "value", "bar", ""}}
	for _, f := range fs {
		sign, mark := ">=", "!"
		if f.AtMost {
			sign = "<="
		}
		if f.OK {
			mark = "+"
		}
		value := figureValue(f.Value) + " " + f.Unit + mark
		if f.Why+f.Failed != "" {
			value = p.note(f.Why + f.Failed)
		}
		lines = append(lines, []string{f.What, f.Where, value, sign + figureValue(f.Bar), f.Of})
	}
	p.table("figures and bars: + reached, ! missed", lines)
}

func (p *textPrinter) machine(m machine) { p.m = m }

func (p *textPrinter) cell(c cell) {
	at := fmt.Sprintf("%s, threads %d", c.Class, c.Threads)
	if c.Where == whereSelf {
		at = "the own process"
	}
	if at != p.class {
		p.class = at
		fmt.Fprintf(os.Stderr, "kprobe: measuring %s\n", at)
	}
}

func (p *textPrinter) figure(f figure) {
	if at := f.What + ", " + f.Where; at != p.class {
		p.class = at
		fmt.Fprintf(os.Stderr, "kprobe: measured %s\n", at)
	}
}

// machine is what the figures of a run belong to.
type machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"` // that the command may use
	Kernel   string `json:"kernel"`
	Workload string `json:"workload"`
	Rseq     bool   `json:"rseq"` // records take the way without locks
	Rounds   int    `json:"rounds"`
	Calls    uint64 `json:"calls"`      // of a round
	Slow     uint64 `json:"trap_calls"` // of a round whose hits trap
}

// printer writes what a run finds.
type printer interface {
	machine(machine)
	cell(cell)
	figure(figure)
	end(cells []cell, figures []figure, ratios []ratio) error
}
