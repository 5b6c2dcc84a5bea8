package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Op is what a step does.
type Op uint8

// Ops.
const (
	OpWrite    Op = iota // writes to kprobe_events
	OpTruncate           // writes to it after truncating it
	OpEnable             // writes 1 to an event's enable file
	OpDisable            // writes 0 to it
	OpHit                // calls what is probed, while the probes of both sides stand there
	OpTurn               // calls it for each side alone, whose events are enabled for it
)

// Step is one write of a case.
type Step struct {
	Op    Op
	Text  string // what is written; of OpEnable and OpDisable GROUP/EVENT, of OpHit and OpTurn a command
	Shown string // the line of the corpus
}

// Case is a sequence of writes that begins without events.
type Case struct {
	File  string
	Line  int
	Steps []Step
}

// String is where the case stands and how it begins.
func (c *Case) String() string {
	return fmt.Sprintf("%s:%d: %s", c.File, c.Line, c.Steps[0].Shown)
}

// Symbols finds the address of a symbol, and of the next one behind it; 0: there is none.
type Symbols func(name string) (at, next uint64)

// ReadCorpus reads the cases of files. A line is a case; one that starts with "+ ", "+> ",
// "+on ", "+off ", "+hit " or "+turn " is a further step of the case before it. What is written is the line with
// a line feed behind it; a line in double quotes is taken as a string of Go. {TEXT*N} stands
// for N times TEXT, {&SYMBOL} and {&SYMBOL+N} for an address, which symbols finds, and {>SYMBOL} and
// {>SYMBOL+N} for how far behind it the next symbol is, and N more. Lines that start with # and a space are
// comments.
func ReadCorpus(symbols Symbols, files ...string) ([]*Case, error) {
	var out []*Case
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		base := filepath.Base(name)
		for i, line := range strings.Split(string(b), "\n") {
			if line == "" || strings.HasPrefix(line, "# ") {
				continue
			}
			s, more, err := readStep(line, symbols)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s:%d: %w", base, i+1, err)
			case more && len(out) == 0:
				return nil, fmt.Errorf("%s:%d: a further step, but of no case", base, i+1)
			case more:
				c := out[len(out)-1]
				c.Steps = append(c.Steps, s)
			default:
				out = append(out, &Case{File: base, Line: i + 1, Steps: []Step{s}})
			}
		}
	}
	return out, nil
}

// ops are the marks of further steps.
var ops = []struct {
	mark string
	op   Op
}{
	{"+ ", OpWrite},
	{"+> ", OpTruncate},
	{"+on ", OpEnable},
	{"+off ", OpDisable},
	{"+hit ", OpHit},
	{"+turn ", OpTurn},
}

// readStep reads a line; more says that it belongs to the case before it.
func readStep(line string, symbols Symbols) (s Step, more bool, err error) {
	s.Shown = line
	for _, o := range ops {
		if rest, ok := strings.CutPrefix(line, o.mark); ok {
			s.Op, line, more = o.op, rest, true
			break
		}
	}
	text, err := expand(line, symbols)
	if err != nil {
		return s, more, err
	}
	if strings.HasPrefix(text, `"`) {
		s.Text, err = strconv.Unquote(text)
		return s, more, err
	}
	s.Text = text
	if s.Op == OpWrite || s.Op == OpTruncate {
		s.Text += "\n"
	}
	return s, more, nil
}

var (
	repeated  = regexp.MustCompile(`\{([^{}]+?)\*(\d+)\}`)
	addressed = regexp.MustCompile(`\{([&>])(\w+)(?:\+(\d+))?\}`)
)

// expand replaces what stands in braces.
func expand(line string, symbols Symbols) (string, error) {
	line = repeated.ReplaceAllStringFunc(line, func(s string) string {
		m := repeated.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2]) // digits
		return strings.Repeat(m[1], n)
	})
	var err error
	line = addressed.ReplaceAllStringFunc(line, func(s string) string {
		m := addressed.FindStringSubmatch(s)
		at, next := symbols(m[2])
		if at == 0 {
			err = fmt.Errorf("the kernel has no symbol %q", m[2])
		}
		if m[1] == ">" {
			at = next - at
		}
		off, _ := strconv.Atoi("0" + m[3]) // digits
		return fmt.Sprintf("%#x", at+uint64(off))
	})
	return line, err
}
