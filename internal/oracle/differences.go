package oracle

import (
	"fmt"
	"os"
	"strings"
)

// Row explains differences.
type Row struct {
	Line   int
	Reason string
	Field  string
	Step   string // pattern of the step as the corpus shows it
	Kernel string // pattern of what the kernel says
	Ours   string // pattern of what we say
	Some   bool   // not every build of the kernel differs, or not each time
	Uses   int    // differences that it explained
}

// Table is the table of the differences that have a reason.
type Table []*Row

// ReadTable reads a table. A line that starts with a space is a row, with FIELD | STEP |
// KERNEL | OURS, where * stands for anything; a ? behind FIELD says that not every build of
// the kernel differs, or not each time. The reason of the rows is the paragraph before them. Lines that start
// with # are comments.
func ReadTable(name string) (Table, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var out Table
	reason, open := "", false
	for i, line := range strings.Split(string(b), "\n") {
		switch {
		case line == "" || line[0] == '#':
			open = false
		case line[0] != ' ' && line[0] != '\t':
			if !open {
				reason = ""
			}
			open = true
			reason = strings.TrimSpace(reason + " " + line)
		default:
			open = false
			f := strings.Split(strings.TrimSpace(line), " | ")
			if len(f) != 4 || reason == "" {
				return nil, fmt.Errorf("%s:%d: a row is FIELD | STEP | KERNEL | OURS, below its reason", name, i+1)
			}
			field, some := strings.CutSuffix(f[0], "?")
			out = append(out, &Row{Line: i + 1, Reason: reason, Field: field, Step: f[1], Kernel: f[2], Ours: f[3], Some: some})
		}
	}
	return out, nil
}

// Explain finds the first row that explains a difference; nil if none does.
func (t Table) Explain(d *Difference) *Row {
	for _, r := range t {
		if r.Field == d.Field && match(r.Step, d.Shown()) && match(r.Kernel, d.Kernel) && match(r.Ours, d.Ours) {
			r.Uses++
			return r
		}
	}
	return nil
}

// Unused gives the rows that have explained nothing, and should have.
func (t Table) Unused() (out Table) {
	for _, r := range t {
		if r.Uses == 0 && !r.Some {
			out = append(out, r)
		}
	}
	return out
}

// Reasons gives a row for each reason, with the sum of the uses.
func (t Table) Reasons() (out Table) {
	for _, r := range t {
		if n := len(out); n > 0 && out[n-1].Reason == r.Reason {
			out[n-1].Uses += r.Uses
			continue
		}
		out = append(out, &Row{Line: r.Line, Reason: r.Reason, Uses: r.Uses})
	}
	return out
}

// match matches a whole text, in which * stands for anything.
func match(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == s
	}
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(s, p)
		if i < 0 {
			return false
		}
		s = s[i+len(p):]
	}
	return true
}
