package ringpage

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/hit"
)

// Text is the kernel's print event, cut where a page ends, and a page says what was lost before it.
func TestMessages(t *testing.T) {
	p := NewPacker(nil, nil)
	ev := &hit.Event{Name: "tracing_mark_write", Message: true}
	texts := []string{"hello", "", strings.Repeat("x", 5000)}
	for i, text := range texts {
		if err := p.Add(&hit.Hit{Event: ev, Nanos: uint64(100 + i), TID: 77, CPU: 1, Rec: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	p.Lost(1, 5)
	if err := p.Add(&hit.Hit{Event: ev, Nanos: 200, TID: 77, CPU: 1, Rec: []byte("last")}); err != nil {
		t.Fatal(err)
	}
	texts = append(texts, "last")
	p.Flush(1)
	pages := p.Pages(1)
	var got []string
	var lost []uint64
	for ; len(pages) > 0; pages = pages[PageSize:] {
		l, err := Read(pages[:PageSize], func(_ uint64, data []byte) error {
			if id, tid := binary.LittleEndian.Uint16(data), binary.LittleEndian.Uint32(data[4:]); id != PrintID || tid != 77 {
				t.Errorf("number %d, thread %d", id, tid)
			}
			text, _, ok := bytes.Cut(data[16:], []byte("\n\x00"))
			if !ok {
				t.Errorf("no end: %q", data[16:])
			}
			got = append(got, string(text))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		lost = append(lost, l.N)
	}
	if len(got) != len(texts) {
		t.Fatalf("%d texts of %d", len(got), len(texts))
	}
	for i := range got {
		if !strings.HasPrefix(texts[i], got[i]) || len(got[i]) < min(len(texts[i]), 4000) {
			t.Errorf("text %d has %d bytes of %d", i, len(got[i]), len(texts[i]))
		}
	}
	if n := len(lost); lost[n-1] != 5 || lost[0] != 0 {
		t.Errorf("lost before the pages: %d", lost)
	}
}
