package modules

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/kmod"
)

// Log has the lines that modules have written, and those about them: the last ones, as many as fit. It may be used by several goroutines.
type Log struct {
	symbol  func(addr uint64) string
	ownTime bool // the target's records have a clock of the target's own

	mu      sync.Mutex
	formats map[uint64]string
	lines   []Line
	size    int
	dropped uint64 // lines that had no room any more
}

// Line is a line of the log.
type Line struct {
	Nanos uint64 // CLOCK_MONOTONIC, or the time of the target's own clock
	Level kmod.Level
	Text  string // without its end
}

// logSize is how many bytes of text are kept: as many as the kernel's log has by default, times four.
const logSize = 1 << 20

// Take takes a record of a module's.
func (l *Log) Take(h *hit.Hit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(l.line(h))
}

// Text is the text of a record of a module's.
func (l *Log) Text(h *hit.Hit) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line(h).Text
}

// line reads a record. Precondition: mu is held.
func (l *Log) line(h *hit.Hit) Line {
	level, text, err := kmod.Line(h.Rec[min(h.Event.ArgsOff, len(h.Rec)):], l.formats, l.symbol)
	if err != nil {
		level, text = 3, fmt.Sprintf("%v: %s", err, text)
	}
	return Line{h.Nanos, level, text}
}

// say writes a line about a module.
func (l *Log) say(level kmod.Level, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(Line{l.now(), level, text})
}

// now is the time of a line about a module. Where the target has a clock of its own, which can not be read from here, it is that of the line before. Precondition: mu is
// held.
func (l *Log) now() uint64 {
	switch n := len(l.lines); {
	case !l.ownTime:
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it does not fail
		return uint64(ts.Nano())
	case n > 0:
		return l.lines[n-1].Nanos
	}
	return 0
}

// put puts a text behind the others: each of its lines, or the end of the line before. Precondition: mu is held.
func (l *Log) put(line Line) {
	text := strings.TrimSuffix(line.Text, "\n")
	if n := len(l.lines); line.Level == kmod.LevelContinue && n > 0 {
		l.lines[n-1].Text += text
		l.size += len(text)
	} else {
		for part := range strings.SplitSeq(text, "\n") {
			l.lines = append(l.lines, Line{line.Nanos, line.Level, part})
			l.size += len(part) + lineCost
		}
	}
	for l.size > logSize && len(l.lines) > 1 {
		l.size -= len(l.lines[0].Text) + lineCost
		l.lines = l.lines[1:]
		l.dropped++
	}
}

// lineCost is what a line takes beside its text.
const lineCost = 48

// add makes a module's formats known.
func (l *Log) add(formats map[uint64]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.formats == nil {
		l.formats = map[uint64]string{}
	}
	maps.Copy(l.formats, formats)
}

// Place is a place in the log: so many lines of it, and so many bytes of the last of them.
type Place struct{ lines, bytes uint64 }

// Next gives the line behind a place, and the place behind that line. A line that has become longer comes once more, with what is new of it.
func (l *Log) Next(p Place) (line Line, end Place, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(0) // of the lines that are there, those before the place
	if p.lines > l.dropped {
		n = p.lines - l.dropped
		if line = l.lines[n-1]; uint64(len(line.Text)) > p.bytes {
			end = Place{p.lines, uint64(len(line.Text))}
			line.Text = line.Text[p.bytes:]
			return line, end, true
		}
	}
	if n == uint64(len(l.lines)) {
		return Line{}, p, false
	}
	line = l.lines[n]
	return line, Place{l.dropped + n + 1, uint64(len(line.Text))}, true
}

// Lines gives the lines, the oldest first, and how many older ones there were.
func (l *Log) Lines() (lines []Line, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Line(nil), l.lines...), l.dropped
}
