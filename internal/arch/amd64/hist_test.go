package amd64

import (
	"encoding/binary"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/fetch"
)

// TestReadHist reads memory of histograms: entries with the same keys are added up, slots that are being written are no entries,
// and memory that is too short holds none.
func TestReadHist(t *testing.T) {
	const cpus = 3
	h := &fetch.Hist{Keys: make([]fetch.HistNumber, 2), Vals: make([]fetch.HistNumber, 1), Size: 128}
	mem := make([]byte, HistBytes(h, cpus))
	l := layoutOf(h)
	le := binary.LittleEndian
	put := func(slot int, state uint64, keys [2]uint64, hits, sum uint64) {
		b := mem[histSlots+slot*l.slot:]
		le.PutUint64(b, state)
		le.PutUint64(b[8:], keys[0])
		le.PutUint64(b[16:], keys[1])
		for cpu := range uint64(cpus) {
			c := mem[l.columns+cpu*l.stride+uint64(slot*l.column):]
			le.PutUint64(c, hits+cpu)
			le.PutUint64(c[8:], sum)
		}
	}
	put(0, histReady, [2]uint64{1, 2}, 10, 5)
	put(7, histReady, [2]uint64{1, 2}, 1, 0)
	put(8, histWriting, [2]uint64{3, 4}, 1, 0)
	put(1<<l.log-1, histReady, [2]uint64{1, 3}, 0, 7)
	le.PutUint64(mem[histDropped:], 9)
	entries, dropped, _ := ReadHist(mem, h, cpus)
	if dropped != 9 || len(entries) != 2 || entries[0].Hits != 10+11+12+1+2+3 || entries[0].Sums[0] != 15 || entries[1].Hits != 3 || entries[1].Sums[0] != 21 || entries[1].Keys[1] != 3 {
		t.Errorf("%+v, %d dropped", entries, dropped)
	}
	if entries, _, _ := ReadHist(mem[:len(mem)-1], h, cpus); entries != nil {
		t.Errorf("memory that is too short: %+v", entries)
	}
}

// TestReadHistStack reads callers: no more than there is room for, whatever their number says.
func TestReadHistStack(t *testing.T) {
	h := &fetch.Hist{Keys: []fetch.HistNumber{{Size: 8}, {From: fetch.HistCallers, Frames: 2}}, Size: 128}
	mem := make([]byte, HistBytes(h, 1))
	l := layoutOf(h)
	le := binary.LittleEndian
	for slot, n := range []uint64{0, 1, 2, 3, 1 << 40, ^uint64(0)} {
		b := mem[histSlots+slot*l.slot:][:l.slot]
		for i, v := range []uint64{histReady, uint64(slot), n, 0x1000, 0x2000 | fetch.Interrupted} {
			le.PutUint64(b[8*i:], v)
		}
		le.PutUint64(mem[l.columns+uint64(slot*l.column):], 5)
	}
	entries, _, _ := ReadHist(mem, h, 1)
	if len(entries) != 6 {
		t.Fatalf("%+v", entries)
	}
	want := []fetch.StackFrame{{PC: 0x1000}, {PC: 0x2000, Interrupted: true}}
	for i, e := range entries {
		if e.Hits != 5 || e.Keys[0] != uint64(i) || !slices.Equal(e.Callers, want[:min(i, 2)]) {
			t.Errorf("%d: %+v", i, e)
		}
	}
}

// TestReadHistUnset reads the hits that found no variable, of all CPUs, beside entries that are read as in other histograms.
func TestReadHistUnset(t *testing.T) {
	const cpus = 2
	h := &fetch.Hist{Keys: make([]fetch.HistNumber, 1), Sets: make([]fetch.HistNumber, 2), Size: 4, Since: &fetch.HistVar{}}
	mem := make([]byte, HistBytes(h, cpus))
	l := layoutOf(h)
	le := binary.LittleEndian
	for cpu := range uint64(cpus) {
		le.PutUint64(mem[l.columns+cpu*l.stride+l.unset:], 5+cpu)
		le.PutUint64(mem[l.columns+cpu*l.stride+7*uint64(l.column):], 100)
	}
	for at := l.vars; at < l.columns; at += 8 {
		le.PutUint64(mem[at:], ^uint64(0)) // variables are nobody's numbers
	}
	le.PutUint64(mem[histSlots+7*l.slot:], 0xabc0|histReady)
	entries, dropped, unset := ReadHist(mem, h, cpus)
	if len(entries) != 1 || entries[0].Hits != 200 || dropped != 0 || unset != 11 {
		t.Errorf("%+v, %d dropped, %d unset", entries, dropped, unset)
	}
}
