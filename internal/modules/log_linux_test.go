package modules

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/kmod"
)

// TestLog: a text of several lines is several, one that goes on stands behind the line before, the oldest go where there is no room, and a record that is damaged is told.
func TestLog(t *testing.T) {
	var l Log
	l.put(Line{1, 4, "one\ntwo\n"})
	l.put(Line{2, kmod.LevelContinue, ", and more\n"})
	lines, dropped := l.Lines()
	if len(lines) != 2 || lines[0].Text != "one" || lines[1].Text != "two, and more" || lines[1].Nanos != 1 || dropped != 0 {
		t.Errorf("%+v, %d older ones", lines, dropped)
	}
	long := strings.Repeat("x", 1000)
	for range 2 * logSize / len(long) {
		l.say(6, long)
	}
	if lines, dropped = l.Lines(); len(lines) > logSize/len(long) || len(lines) < logSize/len(long)/2 || dropped != uint64(2+2*logSize/len(long)-len(lines)) {
		t.Errorf("%d lines, %d older ones", len(lines), dropped)
	}
	l.Take(&hit.Hit{Event: &hit.Event{ArgsOff: 16}, Rec: make([]byte, 20)})
	if lines, _ = l.Lines(); !strings.Contains(lines[len(lines)-1].Text, kmod.ErrRecord.Error()) {
		t.Errorf("a damaged record: %+v", lines[len(lines)-1])
	}
}

// TestLogNext: each line comes once, of one that goes on what is new, and after lines that have gone the oldest that is there.
func TestLogNext(t *testing.T) {
	var l Log
	var at Place
	next := func(want string) {
		t.Helper()
		line, end, ok := l.Next(at)
		if line.Text != want || ok != (want != "") {
			t.Errorf("%q, %v; want %q", line.Text, ok, want)
		}
		at = end
	}
	next("")
	l.put(Line{1, 4, "one\ntwo\n"})
	next("one")
	l.put(Line{2, kmod.LevelContinue, ", and more\n"})
	next("two, and more")
	next("")
	l.put(Line{3, kmod.LevelContinue, ", and the rest\n"})
	next(", and the rest")
	next("")
	for range 3 * logSize / 1000 {
		l.say(6, strings.Repeat("x", 1000))
	}
	l.say(6, "last")
	lines, dropped := l.Lines()
	if dropped == 0 {
		t.Error("nothing was dropped")
	}
	for range lines[1:] {
		next(strings.Repeat("x", 1000))
	}
	next("last")
	next("")
}
