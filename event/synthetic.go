package event

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// SyntheticGroup is the group of synthetic events.
const SyntheticGroup = "synthetic"

// Synthetic is a synthetic event: one that an action of a histogram traces (Documentation/trace/histogram.rst, Linux 6.18).
type Synthetic struct {
	Text   string // as it was written
	Name   string
	Fields []SyntheticField
	Hist   *Hist // what the events are counted in; nil: nothing. No part of Text.
}

// SyntheticField is a field of a synthetic event.
type SyntheticField struct {
	Name   string
	Type   string // as a format file has it
	Size   int    // bytes; of a string the most that it holds
	Signed bool
	Text   bool // a string
}

// Dynamic says whether the field is a string of any length.
func (f *SyntheticField) Dynamic() bool { return strings.HasPrefix(f.Type, "__data_loc ") }

// SyntheticError is the definition of a synthetic event that was refused. It answers errors.Is with EINVAL.
type SyntheticError struct {
	Text string // the kernel's (kernel/trace/trace_events_synth.c, Linux 6.18)
	Cmd  string // the definition
	Pos  int    // byte of Cmd that is wrong
}

// Error gives the error in one line.
func (e *SyntheticError) Error() string {
	return fmt.Sprintf("synthetic event %q, column %d: %s", e.Cmd, e.Pos+1, e.Text)
}

// Detail gives the error as the kernel's error_log does (without its time).
func (e *SyntheticError) Detail() string {
	return fmt.Sprintf("synthetic_events: error: %s\n  Command: %s\n%*s^\n", e.Text, e.Cmd, len("  Command: ")+e.Pos, "")
}

// Is says whether target is EINVAL.
func (e *SyntheticError) Is(target error) bool { return target == syscall.EINVAL }

// The kernel's texts.
const (
	synthBadName    = "Illegal name"
	synthBadCmd     = "Command must be of the form: <name> field[;field] ..."
	synthBadDynCmd  = "Command must be of the form: s or -:[synthetic/]<name> field[;field] ..."
	synthTooMany    = "Too many fields"
	synthIncomplete = "Incomplete type"
	synthBadType    = "Invalid type"
	synthBadField   = "Invalid field"
	synthBadArray   = "Invalid array specification"
)

// refuse puts the caret where the kernel does: below the first place that reads as part does.
func (s *Synthetic) refuse(text, part string) error {
	return &SyntheticError{Text: text, Cmd: s.Text, Pos: max(strings.Index(s.Text, part), 0)}
}

// IsSynthetic says whether a definition is one of a synthetic event.
func IsSynthetic(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), "s:") }

// ParseSynthetic parses s:[synthetic/]NAME TYPE FIELD[; TYPE FIELD]…, as dynamic_events takes it. Its errors are *SyntheticError.
func ParseSynthetic(text string) (*Synthetic, error) {
	s := &Synthetic{Text: strings.TrimSpace(text)}
	name, fields, ok := strings.Cut(strings.ReplaceAll(s.Text, "\t", " "), " ")
	if !ok || !strings.HasPrefix(name, "s:") {
		return nil, s.refuse(synthBadCmd, "")
	}
	s.Name = name[len("s:"):]
	if strings.Contains(s.Name, "/") {
		if s.Name, ok = strings.CutPrefix(s.Name, SyntheticGroup+"/"); !ok {
			return nil, s.refuse(synthBadDynCmd, "")
		}
	}
	if first, _, _ := strings.Cut(fields, ";"); s.Name == "" || len(strings.Fields(first)) < 2 {
		return nil, s.refuse(synthBadCmd, "")
	}
	if !isName(s.Name, false) {
		return nil, s.refuse(synthBadName, s.Name)
	}
	for _, part := range strings.Split(fields, ";") {
		words := strings.Fields(part)
		for len(words) > 0 { // the kernel takes several without a semicolon
			n, err := s.field(words)
			if err != nil {
				return nil, err
			}
			words = words[n:]
		}
	}
	return s, nil
}

// synthSizes are the types of fields and their sizes in bytes.
var synthSizes = map[string]int{
	"s64": 8, "u64": 8, "s32": 4, "u32": 4, "s16": 2, "u16": 2, "s8": 1, "u8": 1, "char": 1, "unsigned char": 1, "int": 4, "unsigned int": 4,
	"long": 8, "unsigned long": 8, "bool": 1, "pid_t": 4,
}

// field takes a field from the words of a definition, and gives the number of words.
func (s *Synthetic) field(words []string) (n int, err error) {
	typ, n := words[0], 2
	if typ == "unsigned" {
		if n = 3; len(words) < n {
			return 0, s.refuse(synthIncomplete, typ)
		}
		typ = words[1]
	}
	if len(words) < n {
		return 0, s.refuse(synthBadField, typ)
	}
	word := words[n-1]
	f := SyntheticField{Type: strings.Join(words[:n-1], " ")}
	name, array, isArray := strings.Cut(word, "[")
	if f.Name = name; !isName(name, false) {
		return 0, s.refuse(synthBadName, word)
	}
	if isArray {
		f.Type += "[" + array
	}
	length, isText := strings.CutPrefix(f.Type, "char[")
	switch {
	case isText:
		size, ok := synthLength(length)
		if !ok {
			return 0, s.refuse(synthBadArray, word)
		}
		if f.Text, f.Size = true, size; size == 0 {
			f.Type, f.Size = "__data_loc "+f.Type, MaxHistText
		}
	case synthSizes[f.Type] == 0:
		return 0, s.refuse(synthBadType, typ)
	default:
		f.Size = synthSizes[f.Type]
	}
	f.Signed = !strings.HasPrefix(f.Type, "u")
	if len(s.Fields) == MaxSynthFields {
		return 0, s.refuse(synthTooMany, "")
	}
	if slices.ContainsFunc(s.Fields, func(o SyntheticField) bool { return o.Name == f.Name }) {
		return 0, s.refuse(synthBadField, word)
	}
	s.Fields = append(s.Fields, f)
	return n, nil
}

// synthLength is the length of a string, behind its bracket: 0 of any.
func synthLength(s string) (n int, ok bool) {
	digits, ok := strings.CutSuffix(s, "]")
	if !ok || len(digits) > 3 || digits == "" {
		return 0, ok && digits == ""
	}
	v, ok := parseUint(digits)
	return int(v), ok && v > 0 && v <= MaxHistText
}
