package event

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// SyntheticGroup is the group of synthetic events.
const SyntheticGroup = "synthetic"

// Dynamic says whether the field is a string of any length, or a stack.
func (f *SyntheticField) Dynamic() bool { return strings.HasPrefix(f.Type, synthDynamic) }

// String is the event as the file synthetic_events lists it.
func (s *Synthetic) String() string {
	fields := make([]string, len(s.Fields))
	for i := range s.Fields {
		f := &s.Fields[i]
		fields[i] = strings.TrimPrefix(f.Type, synthDynamic) + " " + f.Name
	}
	return s.Name + "\t" + strings.Join(fields, "; ")
}

// Same says whether both have the same name and fields.
func (s *Synthetic) Same(o *Synthetic) bool {
	return s.Name == o.Name && slices.Equal(s.Fields, o.Fields)
}

// SyntheticError is the definition of a synthetic event that was refused. It answers errors.Is with EINVAL, or EEXIST: there is one of the
// name.
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

// LogEntry is Detail: the kernel logs all of them.
func (e *SyntheticError) LogEntry() string { return e.Detail() }

// Is says whether target is the error number.
func (e *SyntheticError) Is(target error) bool {
	if e.Text == synthExists {
		return target == syscall.EEXIST
	}
	return target == syscall.EINVAL
}

// synthDynamic begins the type of a string of any length, or of a stack, in a format file; the list leaves it out.
const synthDynamic = "__data_loc "

// The kernel's texts.
const (
	synthExists     = "Event already exists"
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
	name, fields, ok := s.cut()
	if !ok || !strings.HasPrefix(name, "s:") {
		return nil, s.refuse(synthBadCmd, "")
	}
	s.Name = name[len("s:"):]
	if strings.Contains(s.Name, "/") {
		if s.Name, ok = strings.CutPrefix(s.Name, SyntheticGroup+"/"); !ok {
			return nil, s.refuse(synthBadDynCmd, "")
		}
	}
	if err := s.named(fields); err != nil {
		return nil, err
	}
	return s.parseFields(fields)
}

// ParseSyntheticCommand parses a line as synthetic_events takes it: NAME TYPE FIELD[; TYPE FIELD]…, or !NAME, which deletes an event
// whatever follows. Both are nil of an empty line. exists says whether there is an event of a name: that is looked up before the fields are
// read. Errors are *SyntheticError.
func ParseSyntheticCommand(text string, exists func(name string) bool) (def *Synthetic, remove string, err error) {
	s := &Synthetic{Text: strings.TrimLeft(text, triggerSpaces)}
	if s.Text == "" {
		return nil, "", nil
	}
	name, fields, ok := s.cut()
	if deleted, is := strings.CutPrefix(name, "!"); is {
		return nil, deleted, nil
	}
	if !ok {
		return nil, "", s.refuse(synthBadCmd, "")
	}
	s.Name = name
	switch err = s.named(fields); {
	case err != nil:
		return nil, "", err
	case exists(s.Name):
		return nil, "", s.Exists()
	}
	def, err = s.parseFields(fields)
	return def, "", err
}

// Exists makes the error for an event whose name is taken.
func (s *Synthetic) Exists() error { return s.refuse(synthExists, s.Name) }

// cut splits the text behind the name.
func (s *Synthetic) cut() (name, fields string, ok bool) {
	i := strings.IndexAny(s.Text, " \t")
	if i < 0 {
		return s.Text, "", false
	}
	return s.Text[:i], s.Text[i:], true
}

// named checks the name, and that a field follows.
func (s *Synthetic) named(fields string) error {
	if first, _, _ := strings.Cut(fields, ";"); s.Name == "" || len(strings.Fields(first)) < 2 {
		return s.refuse(synthBadCmd, "")
	}
	if !isName(s.Name, false) {
		return s.refuse(synthBadName, s.Name)
	}
	return nil
}

func (s *Synthetic) parseFields(fields string) (*Synthetic, error) {
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
	"long": 8, "unsigned long": 8, "bool": 1, "pid_t": 4, "gfp_t": 4,
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
			f.Type, f.Size = synthDynamic+f.Type, MaxHistText
		}
	case strings.Contains(f.Type, "long["): // whatever stands in the brackets
		f.Stack, f.Type, f.Size = true, synthDynamic+f.Type, 8
	case synthSizes[f.Type] == 0:
		return 0, s.refuse(synthBadType, typ)
	default:
		f.Size = synthSizes[f.Type]
	}
	f.Signed = !strings.HasPrefix(f.Type, "u") && f.Type != "gfp_t"
	if len(s.Fields) == MaxSynthFields {
		return 0, s.refuse(synthTooMany, "")
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
