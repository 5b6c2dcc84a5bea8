package event

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// ParseHist parses a histogram: what the kernel takes behind "hist:", or with it. Errors are *HistError.
func ParseHist(text string) (*Hist, error) { return parseHist(text, false) }

// ParseHistCommand parses a histogram as it is written to a trigger file: beside what ParseHist takes there are the words cont, continue
// and clear, which change a histogram that is there, as pause then does too, and the action snapshot().
func ParseHistCommand(text string) (*Hist, error) { return parseHist(text, true) }

func parseHist(text string, command bool) (*Hist, error) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "hist:") {
		text = "hist:" + text
	}
	h := &Hist{Text: text, Size: defaultHist, command: command}
	spec, ok := h.cutFilter()
	if !ok {
		return nil, h.Refuse(HistErrno, "if", "no filter follows if")
	}
	p := histParser{h: h}
	for _, part := range strings.Split(strings.TrimSpace(spec)[len("hist:"):], ":") {
		if err := p.attribute(part); err != nil {
			return nil, err
		}
	}
	return h, p.parse()
}

// cutFilter takes the filter, which stands behind the first "if" that is a word, and gives what stands before it.
func (h *Hist) cutFilter() (spec string, ok bool) {
	const blank = " \t"
	for at := 0; ; at += len("if") {
		i := strings.Index(h.Text[at:], "if")
		if i < 0 {
			return h.Text, true
		}
		at += i
		rest := h.Text[at+len("if"):]
		switch {
		case !strings.ContainsRune(blank, rune(h.Text[at-1])):
		case rest == "":
			return "", false
		case strings.ContainsRune(blank, rune(rest[0])):
			h.Filter = strings.TrimSpace(rest)
			return h.Text[:at], true
		}
	}
}

// histParser has the parts of a histogram, as they are written.
type histParser struct {
	h                 *Hist
	keys, vals, sorts string
	vars, actions     []string
}

// attribute takes what stands between two colons.
func (p *histParser) attribute(part string) error {
	name, value, ok := strings.Cut(part, "=")
	if !ok {
		return p.word(part)
	}
	if value == "" {
		return p.h.Refuse(HistEmptyAssignment, part, "")
	}
	switch name {
	case "key", "keys":
		p.keys = value
	case "val", "vals", "values":
		p.vals = value
	case "sort":
		p.sorts = value
	case "size":
		return p.size(value)
	case "name":
		p.h.Name = value
	case "clock":
		if value = strings.TrimSpace(value); value != onlyClock {
			return p.h.Refuse(HistSetClockFail, value, "there is one clock, which counts nanoseconds: clock="+onlyClock)
		}
	default:
		if len(p.vars) == MaxHistVars {
			return p.h.Refuse(HistTooManyVars, part, fmt.Sprintf("at most %d", MaxHistVars))
		}
		p.vars = append(p.vars, part)
	}
	return nil
}

func (p *histParser) size(value string) error {
	n, ok := parseUint(value)
	if !ok || n == 0 || n > maxHistSize {
		return p.h.Refuse(HistErrno, value, histSizeWhole)
	}
	if p.h.Size = 1 << bits.Len64(n-1); p.h.Size < minHistSize {
		return p.h.Refuse(HistErrno, value, histSizeWhole)
	}
	return nil
}

// word takes an attribute without a value.
func (p *histParser) word(word string) error {
	switch {
	case word == "":
		return p.h.Refuse(HistErrno, word, "keys=FIELD is missing, or a colon is too many")
	case word == "nohitcount" || word == "NOHC":
		p.h.NoHitcount = true
	case word == "pause":
		p.h.Paused = true
	case p.h.command && (word == "cont" || word == "continue"):
		p.h.Continue = true
	case p.h.command && word == "clear":
		p.h.Clear = true
	case word == "cont" || word == "continue" || word == "clear":
		return p.h.Refuse(HistNoSuchTrigger, "", "a histogram begins empty, and counts unless it has pause")
	case len(p.actions) == MaxHistActions:
		return p.h.Refuse(HistErrno, word, fmt.Sprintf("at most %d actions", MaxHistActions))
	case strings.HasPrefix(word, "onmatch(") || strings.HasPrefix(word, "onmax(") || strings.HasPrefix(word, "onchange("):
		p.actions = append(p.actions, word)
	default:
		return p.h.Refuse(HistErrno, word, "parts are keys=, vals=, sort=, size=, name=, VAR=EXPRESSION, nohitcount, pause, onmatch(), onmax() and onchange()")
	}
	return nil
}

// parse takes the parts apart, in the kernel's order: so the first error is the kernel's.
func (p *histParser) parse() error {
	h := p.h
	if p.keys == "" {
		return h.Refuse(HistErrno, "", "keys=FIELD is missing")
	}
	for _, a := range p.actions {
		if err := h.action(a); err != nil {
			return err
		}
	}
	steps := []func() error{p.parseVals, p.parseVars, p.parseKeys, p.parseSorts}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (p *histParser) parseKeys() error {
	h := p.h
	for _, text := range strings.Split(p.keys, ",") {
		if len(h.Keys) == MaxHistKeys {
			return h.Refuse(HistErrno, text, fmt.Sprintf("at most %d keys", MaxHistKeys))
		}
		k, err := h.expr(text, histKey)
		if err != nil {
			return err
		}
		h.Keys = append(h.Keys, k)
	}
	return nil
}

func (p *histParser) parseVals() error {
	h := p.h
	for _, text := range strings.Split(p.vals, ",") {
		if text == HistHitcount || p.vals == "" {
			continue
		}
		if len(h.Vals) == MaxHistVals {
			return h.Refuse(HistErrno, text, fmt.Sprintf("at most %d values", MaxHistVals))
		}
		v, err := h.expr(text, histVal)
		if err != nil {
			return err
		}
		switch v.Mod {
		case HistPlain, HistHex, HistPercent, HistGraph, HistUsecs:
		default:
			return h.Refuse(HistBadFieldModifier, text, "a value is shown as it is, or .hex, .percent or .graph")
		}
		h.Vals = append(h.Vals, v)
	}
	if h.NoHitcount && len(h.Vals) == 0 {
		return h.Refuse(HistNeedVal, "", "name one: vals=FIELD")
	}
	return nil
}

func (p *histParser) parseVars() error {
	h := p.h
	var defs [][2]string
	for _, list := range p.vars {
		for _, text := range strings.Split(list, ",") {
			name, expr, ok := strings.Cut(text, "=")
			if !ok {
				return h.Refuse(HistMalformedAssignment, name, "VAR=EXPRESSION")
			}
			if len(defs) == MaxHistVars {
				return h.Refuse(HistTooManyVars, name, fmt.Sprintf("at most %d", MaxHistVars))
			}
			defs = append(defs, [2]string{name, expr})
		}
	}
	for _, d := range defs {
		f, err := h.expr(d[1], histVar)
		if err != nil {
			return err
		}
		switch f.Mod {
		case HistLog2, HistBuckets:
			return h.Refuse(HistBadFieldModifier, d[1], "a variable keeps the number")
		}
		h.Vars = append(h.Vars, HistVar{Name: d[0], Text: d[1], Is: f})
	}
	return nil
}

// parseSorts takes what is sorted by. What an expression is called is known when its variables are: CheckSort is asked again then.
func (p *histParser) parseSorts() error {
	h := p.h
	for _, text := range strings.Split(p.sorts, ",") {
		name, mod, has := strings.Cut(text, ".")
		switch {
		case p.sorts == "":
			continue
		case name == "":
			return h.Refuse(HistEmptySortField, "sort=", "")
		case has && mod != "descending" && mod != "ascending":
			return h.Refuse(HistInvalidSortModifier, mod, "ascending or descending")
		case len(h.Sort) == MaxHistSorts:
			return h.Refuse(HistTooManySortFields, "sort=", "")
		}
		h.Sort = append(h.Sort, HistSort{Name: name, Descending: mod == "descending"})
		if h.Plain() {
			if err := h.CheckSort(); err != nil {
				return err
			}
		}
	}
	if len(h.Sort) == 0 {
		h.Sort = []HistSort{{Name: HistHitcount}}
	}
	return nil
}

// CheckSort says whether entries can be sorted as the histogram asks for. Its error is an *HistError.
func (h *Hist) CheckSort() error {
	for _, s := range h.Sort {
		if s.Column(h) == noColumn {
			return h.Refuse(HistInvalidSortField, s.Name, "")
		}
	}
	return nil
}

// Column is where an entry has what it is sorted by: the number of a key or, behind these, a value; -1: hitcount. As in the kernel a value
// comes before a key of the same name.
func (s *HistSort) Column(h *Hist) int {
	if s.Name == HistHitcount {
		return hitcountColumn
	}
	named := func(f HistField) bool { return f.Name == s.Name }
	if i := slices.IndexFunc(h.Vals, named); i >= 0 {
		return len(h.Keys) + i
	}
	if i := slices.IndexFunc(h.Keys, named); i >= 0 {
		return i
	}
	return noColumn
}

// Columns that are none.
const (
	hitcountColumn = -1
	noColumn       = -2
)
