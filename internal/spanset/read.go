package spanset

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/otlp"
)

// Call is a function whose calls become spans.
type Call struct {
	Def *event.Def // a return probe; Filter is --if
	// Names are the attributes of arguments by the arguments' names, where they differ.
	Names map[string]string
	// Or is what stands for an argument that the program does not know, by the argument's name: the first that it knows.
	Or    map[string][]event.Arg
	Error string    // --error; "": none
	Kind  otlp.Kind // --kind; 0: none
	Where string    // FILE:LINE
}

// MaxSize bounds the file of a set, in bytes.
const MaxSize = 1 << 20

// format is the first line of a set that is no comment. What a later version of this package reads otherwise gets another number.
const format = "format 1"

// Read reads the file of a set; file is its name, for errors. Each wrong line has an error, which says FILE:LINE, what is wrong, and what to write.
func Read(file string, text []byte) (calls []*Call, err error) {
	var errs []error
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%s has more than %d bytes: it is no set", file, MaxSize)
	}
	begun := false
	for i, b := range bytes.Split(text, []byte("\n")) {
		line, where := strings.TrimSpace(string(b)), fmt.Sprintf("%s:%d", file, i+1)
		switch {
		case line == "" || line[0] == '#':
			continue
		case begun:
			c, err := readLine(line)
			if err == nil && c.Def.Place.Glob {
				err = fmt.Errorf("%q is a pattern: a set names each function; give a pattern beside the set, as a probe of its own", c.Def.Place.Symbol)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", where, err))
				continue
			}
			c.Where = where
			calls = append(calls, c)
			continue
		}
		if w := words(line); len(w) != 2 || w[0].text != "format" {
			return nil, fmt.Errorf("%s: %q: the first line of a set is %q", where, line, format)
		} else if w[1].text != "1" {
			return nil, fmt.Errorf("%s: %q is not known: this version of kprobe reads %q", where, line, format)
		}
		begun = true
	}
	if len(calls)+len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s has no function: write %q, and below it a line for each function", file, format))
	}
	return calls, errors.Join(errs...)
}

// option begins the options behind a definition.
var option = regexp.MustCompile(`\s--[A-Za-z-]`)

// readLine reads a line with a function.
func readLine(line string) (*Call, error) {
	text, rest := line, ""
	if at := option.FindStringIndex(line); at != nil {
		text, rest = line[:at[0]], line[at[0]:]
	}
	c, err := readCall(text)
	if err != nil {
		return nil, err
	}
	return c, c.options(rest)
}

// Probe reads a function that is asked for by itself, with its options, as a line of a set has them. It may be a pattern.
func Probe(text string) (*Call, error) {
	c, err := readLine(strings.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	for name := range c.Or {
		return nil, fmt.Errorf("%q: argument %s stands twice: give each once", text, cmp.Or(c.Names[name], name))
	}
	return c, nil
}

// definition is the first word of a definition that has its kind, and its name.
var definition = regexp.MustCompile(`^([-prfw])[0-9]*(:([^:].*)?)?$`)

// Return makes a definition of a return probe of what may be given without its kind: a function and its arguments.
func Return(text string) (string, error) {
	first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch m := definition.FindStringSubmatch(first); {
	case m == nil:
		return "r " + text, nil
	case m[1] != "r":
		return "", fmt.Errorf("%q: a span is a call of a function: give the function, or a return probe, r:NAME FUNC", text)
	}
	return text, nil
}

// readCall reads a definition. An argument whose name stands before is what stands for that one if the program does not know it.
func readCall(text string) (*Call, error) {
	text, err := Return(text)
	if err != nil {
		return nil, err
	}
	plain, names := Attributes(text)
	c := &Call{Names: names, Or: map[string][]event.Arg{}}
	all := words(plain)
	var kept []string
	used := map[string]string{}
	for i, w := range all {
		name, _, named := strings.Cut(w.text, "=")
		given, _, _ := strings.Cut(text[w.at:w.at+len(w.text)], "=")
		switch before, ok := used[name]; {
		case i < 2 || !named || !ok:
			kept = append(kept, w.text)
			if i >= 2 && named {
				used[name] = given
			}
		case before != given:
			return nil, fmt.Errorf("%q and %q: one name stands for both where a filter has _ for the dots: leave one out", before, given)
		default:
			d, err := parse(all[0].text + " " + all[1].text + " " + w.text)
			if err != nil {
				return nil, err
			}
			c.Or[name] = append(c.Or[name], d.Args...)
		}
	}
	c.Def, err = parse(strings.Join(kept, " "))
	return c, err
}

// parse parses the definition of a return probe.
func parse(text string) (*event.Def, error) {
	d, err := event.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q: %w", text, err)
	case d.Kind != event.Return || d.Function:
		return nil, fmt.Errorf("%q: a span is a call of a function: give the function, or a return probe, r:NAME FUNC", text)
	}
	return d, nil
}

// oneOption is an option with its value, which stands in quotes if it has spaces.
var oneOption = regexp.MustCompile(`^--([A-Za-z-]+)(?:\s+|=)('[^']*'|"[^"]*"|[^\s'"]+)(?:\s+|$)`)

// options reads the options behind a definition.
func (c *Call) options(text string) error {
	seen := map[string]bool{}
	for text = strings.TrimSpace(text); text != "" && text[0] != '#'; {
		m := oneOption.FindStringSubmatch(text)
		if m == nil {
			return fmt.Errorf("%q: --NAME VALUE is wanted, with quotes around a value that has spaces: --error 'ret < 0'", text)
		}
		text = text[len(m[0]):]
		name, value := m[1], strings.Trim(m[2], m[2][:1])
		if m[2][0] != '\'' && m[2][0] != '"' {
			value = m[2]
		}
		if seen[name] {
			return fmt.Errorf("--%s stands twice: one is taken; conditions are joined by && and ||", name)
		}
		seen[name] = true
		if err := c.option(name, value); err != nil {
			return err
		}
	}
	return nil
}

// option takes an option.
func (c *Call) option(name, value string) (err error) {
	switch name {
	case "kind":
		c.Kind, err = Kind(value)
		return err
	case "if":
		c.Def.Filter = value
	case "error":
		c.Error = value
	default:
		return fmt.Errorf("option --%s is not known: --kind, --if, --error", name)
	}
	if value == "" || value[0] == '-' {
		return fmt.Errorf("--%s %q: a condition is wanted, such as 'ret < 0'", name, value)
	}
	return nil
}
