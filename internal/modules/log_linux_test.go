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
