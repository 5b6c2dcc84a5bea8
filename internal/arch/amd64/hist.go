package amd64

import (
	"encoding/binary"
	"math/bits"

	"kprobes.dev/kprobes/internal/fetch"
)

// The memory of a histogram that generated code makes:
//
//	0   entries that are taken
//	8   hits for which there was no room
//	64  slots, twice as many as there may be entries or more:
//	    0   its state: 0 if it is free, else the hash of its keys, with other low bits: 1: they are being written; 2: it is an entry
//	    8   the keys, 8 bytes each; of a string its length, and 64 bytes; of a stack the number of callers, and room for
//	        the addresses of the most
//
// Behind them, for each slot, the variables that other histograms read, 8 bytes each, 0 where one is not set. Then, for each CPU, the
// numbers of all slots: the hits and the sums, 8 bytes each; and the hits that found no variable, if the histogram reads one.
//
// A thread that finds no slot with its keys takes a free one by a locked exchange, and writes the keys. Nobody waits for a slot whose keys
// are being written: another thread with the same keys writes them too, and makes the slot an entry. So the keys have one entry, also where
// the first thread is interrupted or killed in between. Each CPU has numbers of its own, so that the locked additions do not meet.
//
// Two sets of keys with the same hash but for two bits would be mixed if one came while the other is being written. A single key is its
// hash, multiplied: keys whose distance is below 2^59 are never so.
//
// What a hit does with variables, and who may be at the same place:
//
//  1. A hit that sets some is counted in its entry, reads the clock, and stores each word. A word is stored whole. Who reads it, on
//     another CPU or in a signal handler in between, has what it was before or what it is now.
//  2. A hit that reads one has read its own clock before, so that what follows takes no part in the time. It looks up the entry with its
//     keys, and makes none. An exchange takes the word and leaves 0: of several hits one has it. 0 counts as such a hit.
//  3. It takes its own entry, and counts there and in what it traces. Where one has no room it is dropped there, and the word is gone, as
//     where a reader of records counts.
//
// A thread that ends between two steps, or leaves by longjmp, has a hit that is not counted, or one whose variable is not set: no word,
// entry or number is half written. Memory of killed tracers stays as long as code that uses it.
const (
	histEntries = 0
	histDropped = 8
	histSlots   = 64
	histProbes  = 64 // slots that are looked at for a key

	histWriting = 1
	histReady   = 2
	histState   = 3 // the bits
)

// HistSlots is log2 of the slots for so many entries.
func HistSlots(entries int) int { return bits.Len(uint(2*entries - 1)) }

// histLayout says where things lie.
type histLayout struct {
	log     int    // of the slots
	slot    int    // bytes of a slot
	column  int    // bytes of its numbers of one CPU
	vars    uint64 // offset of the variables
	columns uint64 // offset of the numbers of the first CPU
	unset   uint64 // in these, offset of the hits that found no variable
	stride  uint64 // from one CPU's to the next one's
}

func layoutOf(h *fetch.Hist) histLayout {
	l := histLayout{log: HistSlots(h.Size), slot: 8 * (1 + h.KeyWords()), column: 8 * (1 + len(h.Vals))}
	l.vars = histSlots + uint64(l.slot)<<l.log
	l.columns = (l.vars + 8*uint64(len(h.Sets))<<l.log + 63) &^ 63
	l.unset = uint64(l.column) << l.log
	l.stride = l.unset
	if h.Since != nil {
		l.stride += 64
	}
	return l
}

// HistBytes is the size of a histogram's memory.
func HistBytes(h *fetch.Hist, cpus int) int {
	l := layoutOf(h)
	return int(l.columns + uint64(cpus)*l.stride)
}

// ReadHist reads a histogram out of a copy of its memory, which may hold anything: also the hits that found no variable.
func ReadHist(mem []byte, h *fetch.Hist, cpus int) (entries []fetch.HistEntry, dropped, unset uint64) {
	le := binary.LittleEndian
	if len(mem) < HistBytes(h, cpus) {
		return nil, 0, 0
	}
	l, at := layoutOf(h), map[string]int{}
	for n := range 1 << l.log {
		b := mem[histSlots+n*l.slot:][:l.slot]
		if le.Uint64(b)&histState != histReady {
			continue
		}
		i, ok := at[string(b[8:])]
		if !ok {
			i = len(entries)
			at[string(b[8:])] = i
			e := fetch.HistEntry{Sums: make([]uint64, len(h.Vals))}
			readKeys(&e, h, b[8:])
			entries = append(entries, e)
		}
		for cpu := range uint64(cpus) {
			c := mem[l.columns+cpu*l.stride+uint64(n*l.column):]
			entries[i].Hits += le.Uint64(c)
			for v := range h.Vals {
				entries[i].Sums[v] += le.Uint64(c[8+8*v:])
			}
		}
	}
	for cpu := range uint64(cpus) {
		if h.Since != nil {
			unset += le.Uint64(mem[l.columns+cpu*l.stride+l.unset:])
		}
	}
	return entries, le.Uint64(mem[histDropped:]), unset
}

// readKeys reads an entry's keys.
func readKeys(e *fetch.HistEntry, h *fetch.Hist, b []byte) {
	for i := range h.Keys {
		k := &h.Keys[i]
		v := binary.LittleEndian.Uint64(b)
		if k.Text {
			if e.Texts == nil {
				e.Texts = make([]string, len(h.Keys))
			}
			e.Texts[i], v = string(b[8:8+min(v, fetch.HistText)]), 0
		} else if k.From == fetch.HistCallers {
			e.Callers, v = fetch.HistFrames(b, k.Frames), 0
		}
		e.Keys, b = append(e.Keys, v), b[8*k.Words():]
	}
}
