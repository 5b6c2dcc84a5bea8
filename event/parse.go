package event

import (
	"bufio"
	"errors"
	"io"
	"math"
	"strings"
)

// Parse reads one definition. It gives nil for a blank line or a comment, and an *Error
// for a bad one.
func Parse(line string) (*Def, error) { return Parser{}.Parse(line) }

// ParseFile reads definitions, one a line. Every bad line has its error, an *Error with
// the line's number; the definitions of the good lines are given all the same. A reader
// that fails ends the list with its error.
func ParseFile(r io.Reader) ([]*Def, []error) { return Parser{}.ParseFile(r) }

// Parser reads definitions; the zero value is what Parse and ParseFile do.
type Parser struct {
	// Kernel leaves it to a kernel to judge the expressions and types of arguments, which it gets
	// as they stand: it knows more of them (%pd, fields by their names), each version its own.
	// Arguments that are not understood here have no Expr.
	Kernel bool
	// Uprobes: the definitions are those of uprobe_events.
	Uprobes bool
}

// Parse is Parse with the Parser's choices.
func (p Parser) Parse(line string) (*Def, error) {
	if len(line) > maxLine {
		return nil, &Error{Code: LineTooLong, Cmd: printable(line[:64]) + "..."}
	}
	cmd, words := split(line)
	if len(words) == 0 {
		return nil, nil
	}
	d := &Def{Text: cmd, kernel: p.Kernel}
	if i := controlByte(cmd); i >= 0 {
		d.Text = printable(cmd)
		return nil, d.Refuse(BadByte, 0, "only printable characters are taken", nil)
	}
	if words[0].s[0] == '-' && isSpace(line[0]) { // so has it the kernel
		return nil, d.Refuse(BadCommand, 0, "a deletion begins the line: no space stands before its -", nil)
	}
	parse := d.parse
	if p.Uprobes {
		parse = d.parseUprobe
	}
	if err := parse(words); err != nil {
		return nil, err
	}
	return d, nil
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

// parse finds errors in the kernel's order: kind and maxactive, place, name, arguments.
func (d *Def) parse(words []text) error {
	name, err := d.parseKind(words[0])
	if err != nil {
		return err
	}
	if d.Kind == Delete {
		return d.parseDelete(name, words[1:])
	}
	if len(words) < 2 {
		return d.Refuse(NoPlace, len(d.Text)+1, d.needs(), nil)
	}
	place := d.parsePlace
	if d.Kind == Watch {
		place = d.parseWatch
	}
	if err := place(words[1]); err != nil {
		return err
	}
	if err := d.function(words); err != nil {
		return err
	}
	if err := d.parseName(name); err != nil {
		return err
	}
	switch {
	case d.Group != "":
	case d.Function:
		d.Group = FunctionGroup
	case d.Kind == Watch:
		d.Group = WatchGroup
	default:
		d.Group = DefaultGroup
	}
	return d.parseArgs(words[2:])
}

// function checks the place of a definition that was written as f. One that records $retval is a return probe.
func (d *Def) function(words []text) error {
	if !d.Function {
		return nil
	}
	if d.Place.Kind != PlaceSymbol || d.Place.Offset != 0 {
		return d.Refuse(BadProbeAddr, d.Place.Pos, "f stands at a function: give its name or a pattern; p stands at all places", nil)
	}
	for _, w := range words[2:] {
		if _, behind, ok := strings.Cut(w.s, "$retval"); ok && (behind == "" || !isWord(behind[0])) {
			d.Kind = Return
		}
	}
	if d.MaxActive > 0 && d.Kind != Return {
		return d.Refuse(BadMaxactType, 1, "maxactive needs %return", nil)
	}
	return nil
}

// needs says what place is missing.
func (d *Def) needs() string {
	switch {
	case d.Kind == Watch:
		return "give what is watched: @SYMBOL, w@SYMBOL+OFFSET, @ADDRESS"
	case d.Function:
		return "give a function or a pattern"
	}
	return "give a function, FUNCTION+OFFSET or an address"
}

// parseKind reads the first word up to its colon and gives what stands behind it; its
// pos is 0 if there is no colon.
func (d *Def) parseKind(w text) (name text, err error) {
	head := w
	if i := strings.IndexByte(w.s, ':'); i >= 0 {
		head, name = w.until(i), w.from(i+1)
	}
	i := -1
	if head.s != "" {
		i = strings.IndexByte("pr-wf", head.s[0])
	}
	if i < 0 {
		return name, d.Refuse(BadCommand, 0, "only p[:[GRP/]EVENT], r[MAXACTIVE][:[GRP/]EVENT], f[MAXACTIVE][:[GRP/]EVENT], w[:[GRP/]EVENT] and -:[GRP/]EVENT are known here", nil)
	}
	if d.Kind, d.Function = Kind(i), head.s[0] == 'f'; d.Function {
		d.Kind = Probe
	}
	rest := head.s[1:]
	switch {
	case d.Kind == Delete && (rest != "" || name.pos == 0):
		return name, d.Refuse(BadCommand, 1, "a deletion is -:EVENT, -:GRP/EVENT or -:GRP/", nil)
	case d.Function && rest != "":
		return name, d.parseMaxActive(rest)
	case d.Kind != Return && rest != "" && isDigit(rest[0]):
		return name, d.Refuse(BadMaxactType, 1, "maxactive needs r", nil)
	case d.Kind != Return && rest != "":
		return name, d.Refuse(BadCommand, 1, "the name of the event follows a colon: "+head.s[:1]+":EVENT", nil)
	case d.Kind == Return && rest != "":
		return name, d.parseMaxActive(rest)
	}
	return name, nil
}

// parseMaxActive reads the number behind r. 0 is the default, as the kernel's documents
// say and its code does not.
func (d *Def) parseMaxActive(s string) error {
	n, ok := parseUint(s)
	switch {
	case !ok || !isDigit(s[0]) || n > math.MaxUint32:
		return d.Refuse(BadMaxact, 1, "behind the first letter, before the colon, stands a number from 0 (the default) to 4096", nil)
	case n > MaxMaxActive:
		return d.Refuse(MaxactTooBig, 1, "the most is 4096", nil)
	}
	d.MaxActive = int(n)
	return nil
}

// parseName reads [GROUP/][EVENT], or GROUP.EVENT.
func (d *Def) parseName(t text) error {
	if t.pos == 0 {
		return nil
	}
	sep := strings.IndexByte(t.s, '/')
	if sep < 0 {
		sep = strings.IndexByte(t.s, '.')
	}
	if sep >= 0 {
		group := t.until(sep)
		switch {
		case sep == 0:
			return d.Refuse(NoGroupName, group.pos, "", nil)
		case sep > MaxName:
			return d.Refuse(GroupTooLong, group.pos, "the most is 63 characters", nil)
		case !isName(group.s, true):
			return d.Refuse(BadGroupName, group.pos, "letters, digits, _ and - are taken, no digit in front", nil)
		}
		d.Group, t = group.s, t.from(sep+1)
	}
	switch {
	case t.s == "" && sep >= 0:
		return nil
	case t.s == "":
		return d.Refuse(NoEventName, t.pos, "leave out the colon for a generated name", nil)
	case len(t.s) > MaxName:
		return d.Refuse(EventTooLong, t.pos, "the most is 63 characters", nil)
	case !isName(t.s, false):
		return d.Refuse(BadEventName, t.pos, "letters, digits and _ are taken, no digit in front", nil)
	}
	d.Name = t.s
	return nil
}

func (d *Def) parseDelete(name text, rest []text) error {
	if err := d.parseName(name); err != nil {
		return err
	}
	for _, w := range rest {
		d.match = append(d.match, w.s)
	}
	return nil
}

// ParseFile is ParseFile with the Parser's choices.
func (p Parser) ParseFile(r io.Reader) ([]*Def, []error) {
	var defs []*Def
	var errs []error
	br := bufio.NewReaderSize(r, maxLine+2)
	for n := 1; ; n++ {
		line, err := readLine(br)
		if err != nil && !errors.Is(err, io.EOF) {
			return defs, append(errs, &Error{Code: ReadFailed, Line: n, Err: err})
		}
		if n > maxLines {
			return defs, append(errs, &Error{Code: TooManyLines, Line: n, Text: "the most is 1048576 lines"})
		}
		def, bad := p.Parse(line)
		if bad != nil {
			errs = append(errs, atLine(bad, n))
		} else if def != nil {
			def.Line = n
			defs = append(defs, def)
		}
		if err != nil {
			return defs, errs
		}
	}
}

func atLine(err error, n int) error {
	var e *Error
	if errors.As(err, &e) {
		e.Line = n
	}
	return err
}

// readLine reads up to a line feed. Of a line that is too long it keeps just enough for
// Parse to see that.
func readLine(br *bufio.Reader) (string, error) {
	b, err := br.ReadSlice('\n')
	line := strings.TrimSuffix(string(b), "\n")
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = br.ReadSlice('\n')
	}
	return line, err
}
