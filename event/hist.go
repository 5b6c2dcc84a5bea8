package event

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"syscall"
)

// Limits of a histogram (kernel/trace/tracing_map.h, Linux 6.18).
const (
	MaxHistKeys   = 3
	MaxHistVals   = 3 // beside hitcount
	MaxHistSorts  = 2
	minHistSize   = 1 << 7
	maxHistSize   = 1 << 17
	defaultHist   = 1 << 11
	HistCallers   = 16 // of a stack that is a key
	hitcount      = "hitcount"
	commonStack   = "common_stacktrace"
	histLocation  = "hist"
	histSizeWhole = "a power of two from 128 to 131072 is taken, the next larger one"
)

// Hist is a histogram, in the language of the kernel's hist triggers (Documentation/trace/histogram.rst, Linux 6.18).
type Hist struct {
	Text       string // as the kernel's trigger file has it, from "hist:" on
	Keys       []HistField
	Vals       []HistField // beside hitcount
	Sort       []HistSort
	Size       int    // most entries
	NoHitcount bool   // hitcount is not shown
	Filter     string // behind "if"; "": none
}

// HistField is a field with what is made of it.
type HistField struct {
	Name    string
	Mod     HistMod
	Buckets uint64 // HistBuckets: the size of one
	Pos     int    // byte of Text
}

// HistMod says how a field is taken and shown.
type HistMod uint8

// Modifiers.
const (
	HistPlain     HistMod = iota
	HistHex               // .hex
	HistSym               // .sym
	HistSymOffset         // .sym-offset
	HistExecname          // .execname, of common_pid
	HistLog2              // .log2
	HistBuckets           // .buckets=N
	HistStack             // the callers: common_stacktrace, and as the kernel had it before, stacktrace
)

// HistSort is what entries are sorted by.
type HistSort struct {
	Name       string // hitcount, or of a key or a value
	Descending bool
	Pos        int
}

// HistCode is one of the kernel's errors in a hist trigger (kernel/trace/trace_events_hist.c, Linux 6.18).
type HistCode uint8

// The errors; HistErrno stands for those that the kernel has no text for.
const (
	HistErrno HistCode = iota
	HistFieldNotFound
	HistEmptyAssignment
	HistInvalidSortModifier
	HistEmptySortField
	HistTooManySortFields
	HistInvalidSortField
	HistBadFieldModifier
	HistNeedVal
	HistUnsupported
)

var histTexts = [...]string{
	HistErrno:               "Invalid argument",
	HistFieldNotFound:       "Couldn't find field",
	HistEmptyAssignment:     "Empty assignment",
	HistInvalidSortModifier: "Invalid sort modifier",
	HistEmptySortField:      "Empty sort field",
	HistTooManySortFields:   "Too many sort fields (Max = 2)",
	HistInvalidSortField:    "Sort field must be a key or a val",
	HistBadFieldModifier:    "Invalid field modifier",
	HistNeedVal:             "Non-hitcount value is required for 'nohitcount'",
	HistUnsupported:         "Not supported",
}

// Text is the kernel's text of the error.
func (c HistCode) Text() string { return histTexts[c] }

// HistError is a histogram that was refused. It answers errors.Is with EINVAL.
type HistError struct {
	Code HistCode
	Hist string // its text
	Pos  int    // byte that is wrong
	Why  string // what to do instead, beyond the code's own text; may be empty
}

// Error gives the error in one line.
func (e *HistError) Error() string {
	s := fmt.Sprintf("histogram %q, column %d: %s", e.Hist, e.Pos+1, e.Code.Text())
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Detail gives the error as the kernel's error_log does (without its time): the text, the trigger, and a caret below what is wrong.
func (e *HistError) Detail() string {
	return fmt.Sprintf("%s: error: %s\n  Command: %s\n%*s^\n", histLocation, e.Code.Text(), e.Hist, len("  Command: ")+e.Pos, "")
}

// Is says whether target is EINVAL.
func (e *HistError) Is(target error) bool { return target == syscall.EINVAL }

// Refuse makes the error for what turned out later about a field.
func (h *Hist) Refuse(c HistCode, pos int, why string) *HistError {
	return &HistError{Code: c, Hist: h.Text, Pos: pos, Why: why}
}

// ParseHist parses a histogram: what the kernel takes behind "hist:", or with it. Errors are *HistError.
func ParseHist(text string) (*Hist, error) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "hist:") {
		text = "hist:" + text
	}
	h := &Hist{Text: text, Size: defaultHist}
	spec, filter, ok := strings.Cut(text, " if ")
	if ok {
		h.Text, h.Filter = strings.TrimSpace(spec), strings.TrimSpace(filter)
	}
	p := histParser{h: h, keys: -1, vals: -1, sorts: -1}
	pos := len("hist:")
	for _, part := range strings.Split(h.Text[pos:], ":") {
		if err := p.attribute(part, pos); err != nil {
			return nil, err
		}
		pos += len(part) + 1
	}
	return h, p.fields()
}

// histParser has where the lists of fields stand in the text; -1: they are not there.
type histParser struct {
	h                 *Hist
	keys, vals, sorts int
}

// attribute takes what stands between two colons.
func (p *histParser) attribute(part string, pos int) error {
	name, value, ok := strings.Cut(part, "=")
	if !ok {
		return p.word(part, pos)
	}
	if value == "" {
		return p.h.Refuse(HistEmptyAssignment, pos, "")
	}
	at := pos + len(name) + 1
	switch name {
	case "key", "keys":
		p.keys = at
	case "val", "vals", "values":
		p.vals = at
	case "sort":
		p.sorts = at
	case "size":
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil || n == 0 {
			return p.h.Refuse(HistErrno, at, histSizeWhole)
		}
		if p.h.Size = 1 << bits.Len64(n-1); p.h.Size < minHistSize || p.h.Size > maxHistSize {
			return p.h.Refuse(HistErrno, at, histSizeWhole)
		}
	case "name", "clock":
		return p.h.Refuse(HistUnsupported, pos, "name= and clock= belong to the kernel's files")
	default:
		return p.h.Refuse(HistUnsupported, pos, fmt.Sprintf("%q: variables are not known here yet", name))
	}
	return nil
}

// word takes an attribute without a value.
func (p *histParser) word(word string, pos int) error {
	switch word {
	case "":
		return p.h.Refuse(HistErrno, pos, "keys=FIELD is missing, or a colon is too many")
	case "nohitcount", "NOHC":
		p.h.NoHitcount = true
		return nil
	case "pause", "cont", "continue", "clear":
		return p.h.Refuse(HistUnsupported, pos, "it changes a histogram that is there already, which only the kernel's files do")
	}
	return p.h.Refuse(HistUnsupported, pos, fmt.Sprintf("%q: actions are not known here yet", word))
}

// list gives the fields of a list, with their places.
func (p *histParser) list(at int, each func(field string, pos int) error) error {
	text, _, _ := strings.Cut(p.h.Text[at:], ":")
	for _, f := range strings.Split(text, ",") {
		if err := each(f, at); err != nil {
			return err
		}
		at += len(f) + 1
	}
	return nil
}

// fields takes the lists apart: keys before what is sorted by them.
func (p *histParser) fields() error {
	h := p.h
	if p.keys < 0 {
		return h.Refuse(HistErrno, len(h.Text), "keys=FIELD is missing")
	}
	err := p.list(p.keys, func(f string, pos int) error {
		k, err := h.field(f, pos)
		if err != nil {
			return err
		}
		if len(h.Keys) == MaxHistKeys {
			return h.Refuse(HistErrno, pos, fmt.Sprintf("at most %d keys", MaxHistKeys))
		}
		h.Keys = append(h.Keys, k)
		return nil
	})
	if err == nil && p.vals >= 0 {
		err = p.list(p.vals, p.val)
	}
	if err == nil && h.NoHitcount && len(h.Vals) == 0 {
		err = h.Refuse(HistNeedVal, 0, "name one: vals=FIELD")
	}
	if err == nil && p.sorts >= 0 {
		err = p.list(p.sorts, p.sort)
	}
	if err == nil && len(h.Sort) == 0 {
		h.Sort = []HistSort{{Name: hitcount}}
	}
	return err
}

// val takes a value.
func (p *histParser) val(f string, pos int) error {
	h := p.h
	if f == hitcount {
		return nil
	}
	v, err := h.field(f, pos)
	switch {
	case err != nil:
		return err
	case v.Mod != HistPlain && v.Mod != HistHex:
		return h.Refuse(HistBadFieldModifier, pos, "a value is shown as it is, or .hex")
	case len(h.Vals) == MaxHistVals:
		return h.Refuse(HistErrno, pos, fmt.Sprintf("at most %d values", MaxHistVals))
	}
	h.Vals = append(h.Vals, v)
	return nil
}

// sort takes what is sorted by.
func (p *histParser) sort(f string, pos int) error {
	h := p.h
	name, mod, has := strings.Cut(f, ".")
	s := HistSort{Name: name, Descending: mod == "descending", Pos: pos}
	switch {
	case name == "":
		return h.Refuse(HistEmptySortField, p.sorts-len("sort="), "")
	case has && mod != "descending" && mod != "ascending":
		return h.Refuse(HistInvalidSortModifier, pos+len(name)+1, "ascending or descending")
	case len(h.Sort) == MaxHistSorts:
		return h.Refuse(HistTooManySortFields, p.sorts-len("sort="), "")
	case name != hitcount && h.column(name) < 0:
		return h.Refuse(HistInvalidSortField, pos, "")
	}
	h.Sort = append(h.Sort, s)
	return nil
}

// column is the number of a key or, behind these, a value; -1: there is none.
func (h *Hist) column(name string) int {
	for i, f := range append(h.Keys[:len(h.Keys):len(h.Keys)], h.Vals...) {
		if f.Name == name {
			return i
		}
	}
	return -1
}

// Column is where an entry has what it is sorted by: the number of a key or, behind these, a value; -1: hitcount.
func (s *HistSort) Column(h *Hist) int { return h.column(s.Name) }

// field takes a field with its modifier.
func (h *Hist) field(text string, pos int) (HistField, error) {
	name, mod, has := strings.Cut(text, ".")
	f := HistField{Name: name, Pos: pos}
	if name == commonStack || name == "stacktrace" {
		f.Name, f.Mod = commonStack, HistStack
	}
	if name == "" {
		return f, h.Refuse(HistFieldNotFound, pos, "")
	}
	if !has {
		return f, nil
	}
	at := pos + len(name) + 1
	bad := func(why string) (HistField, error) { return f, h.Refuse(HistBadFieldModifier, at, why) }
	word, size, _ := strings.Cut(mod, "=")
	switch {
	case f.Mod == HistStack:
		return bad("a stack is shown as it is")
	case mod == "hex":
		f.Mod = HistHex
	case mod == "sym":
		f.Mod = HistSym
	case mod == "sym-offset":
		f.Mod = HistSymOffset
	case mod == "log2":
		f.Mod = HistLog2
	case mod == "execname":
		if name != "common_pid" {
			return bad("common_pid.execname is the thread's name; others have none")
		}
		f.Mod = HistExecname
	case word == "buckets" || word == "bucket":
		n, err := strconv.ParseUint(size, 0, 64)
		if err != nil || n == 0 {
			return f, h.Refuse(HistBadFieldModifier, at+len(word)+min(len(mod)-len(word), 1), "buckets=N, the size of one")
		}
		f.Mod, f.Buckets = HistBuckets, n
	default:
		return bad("hex, sym, sym-offset, execname, log2 or buckets=N")
	}
	return f, nil
}

// String is the histogram as the kernel prints it for its trigger, without what it is filtered by.
func (h *Hist) String() string {
	var b strings.Builder
	b.WriteString("hist:keys=")
	for i := range h.Keys {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(h.Keys[i].String())
	}
	b.WriteString(":vals=")
	first := true
	if !h.NoHitcount {
		b.WriteString(hitcount)
		first = false
	}
	for i := range h.Vals {
		if !first {
			b.WriteByte(',')
		}
		b.WriteString(h.Vals[i].String())
		first = false
	}
	b.WriteString(":sort=")
	for i, s := range h.Sort {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(s.Name)
		if n := s.Column(h); n >= 0 && n < len(h.Keys) {
			b.WriteString(strings.TrimPrefix(h.Keys[n].String(), s.Name))
		}
		if s.Descending {
			b.WriteString(".descending")
		}
	}
	fmt.Fprintf(&b, ":size=%d", h.Size)
	if h.Filter != "" {
		b.WriteString(" if " + h.Filter)
	}
	return b.String()
}

// String is the field with its modifier.
func (f *HistField) String() string {
	switch f.Mod {
	case HistHex:
		return f.Name + ".hex"
	case HistSym:
		return f.Name + ".sym"
	case HistSymOffset:
		return f.Name + ".sym-offset"
	case HistExecname:
		return f.Name + ".execname"
	case HistLog2:
		return f.Name + ".log2"
	case HistBuckets:
		return fmt.Sprintf("%s.buckets=%d", f.Name, f.Buckets)
	}
	return f.Name
}
