package ringpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// walker reads pages as the comments of include/linux/ring_buffer.h say, and knows nothing of Read.
func walker(t *testing.T, pages []byte, record func(nanos uint64, data []byte), lost func(n uint64)) {
	if len(pages)%PageSize != 0 {
		t.Fatalf("%d bytes are no pages", len(pages))
	}
	for ; len(pages) > 0; pages = pages[PageSize:] {
		p := pages[:PageSize]
		at := binary.LittleEndian.Uint64(p)
		commit := binary.LittleEndian.Uint64(p[8:])
		end := 16 + int(commit&(1<<20-1))
		if commit>>31&1 == 1 {
			if commit>>30&1 == 0 {
				t.Fatal("lost records without their number")
			}
			lost(binary.LittleEndian.Uint64(p[end:]))
		}
		for i := 16; i < end; {
			w := binary.LittleEndian.Uint32(p[i:])
			if kind, delta := w&31, uint64(w>>5); kind == 30 {
				at += delta + uint64(binary.LittleEndian.Uint32(p[i+4:]))<<27
				i += 8
			} else if kind == 0 {
				n := int(binary.LittleEndian.Uint32(p[i+4:]))
				at += delta
				record(at, p[i+8:i+4+n])
				i += 4 + n
			} else {
				at += delta
				record(at, p[i+4:i+4+int(kind)*4])
				i += 4 + int(kind)*4
			}
			if i > end {
				t.Fatalf("a record goes on behind the commit: %d, %d", i, end)
			}
		}
	}
}

// packed is what a test has put into a packer.
type packed struct {
	fields map[string]string
	nanos  uint64
	lost   uint64 // before it
}

// runPacker packs random hits and losses on two CPUs, and reads them back.
func runPacker(t *testing.T, seed uint64, steps int) {
	r := rand.New(rand.NewPCG(seed, 1))
	events := newEvents(t)
	byID := map[uint16]*testEvent{}
	id := map[*hit.Event]uint16{}
	for _, e := range events {
		byID[uint16(e.id)], id[&e.Event] = e, uint16(e.id)
	}
	p := NewPacker(names{}, func(e *hit.Event) uint16 { return id[e] })
	var want, got [2][]packed
	var lost [2]uint64
	var pages [2][]byte
	now := r.Uint64N(1 << 40)
	for range steps {
		cpu := r.IntN(2)
		switch r.IntN(40) {
		case 0:
			now += r.Uint64N(1 << 34)
		case 1:
			n := 1 + r.Uint64N(1000)
			p.Lost(cpu, n)
			lost[cpu] += n
		case 2:
			p.Flush(cpu)
		case 3:
			pages[cpu] = append(pages[cpu], p.Pages(cpu)...)
		}
		now += r.Uint64N(1000)
		e := events[r.IntN(len(events))]
		h := &hit.Hit{Event: &e.Event, Nanos: now, CPU: cpu, TID: r.IntN(1 << 22), Caller: r.Uint64(), Unknown: e.Return && r.IntN(3) == 0, Rec: e.randomRecord(r)}
		if err := p.Add(h); err != nil {
			t.Fatal(err)
		}
		want[cpu] = append(want[cpu], packed{e.want(t, h), now, lost[cpu]})
		lost[cpu] = 0
	}
	for cpu := range 2 {
		p.Flush(cpu)
		pages[cpu] = append(pages[cpu], p.Pages(cpu)...)
		var gone uint64
		take := func(nanos uint64, data []byte) {
			e := byID[binary.LittleEndian.Uint16(data)]
			if e == nil {
				t.Fatalf("no event %d", binary.LittleEndian.Uint16(data))
			}
			got[cpu] = append(got[cpu], packed{e.decode(data), nanos, gone})
			gone = 0
		}
		walker(t, pages[cpu], take, func(n uint64) { gone = n })
		compare(t, want[cpu], got[cpu])
		got[cpu], gone = nil, 0
		for b := pages[cpu]; len(b) > 0; b = b[PageSize:] {
			var all []packed
			lost, err := Read(b[:PageSize], func(nanos uint64, data []byte) error {
				all = append(all, packed{byID[binary.LittleEndian.Uint16(data)].decode(data), nanos, 0})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			all[0].lost = lost.N
			got[cpu] = append(got[cpu], all...)
		}
		compare(t, want[cpu], got[cpu])
	}
}

func compare(t *testing.T, want, got []packed) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		if fmt.Sprint(got[i]) != fmt.Sprint(want[i]) {
			t.Fatalf("record %d:\n%v, want\n%v", i, got[i], want[i])
		}
	}
}

// TestPacker packs random hits of all forms of fields, and reads them by their format files.
func TestPacker(t *testing.T) {
	for seed := range uint64(6) {
		runPacker(t, seed, 2000)
	}
}

func FuzzPacker(f *testing.F) {
	f.Add(uint64(1), uint16(100))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16) { runPacker(t, seed, int(steps)) })
}

// TestKernelPage reads a page of the kernel's ring: entries and returns of a function that was called ten times, half of them with a bad
// pointer. Then it packs hits with the same values, which must give the same bytes.
func TestKernelPage(t *testing.T) {
	page, err := os.ReadFile("testdata/uprobes.page")
	if err != nil {
		t.Fatal(err)
	}
	const enter, leave = 2326, 2327
	in := newEvent(t, enter, "p:f x s=+0(%di):string n=%si:s32 v=+0(%dx):s64[3] w=+0(%dx):string[2]")
	out := newEvent(t, leave, "r:fr x r=$retval:x32 k=$comm")
	in.Addr, out.Addr = 0x5616f54ac129, 0x5616f54ac129
	p := NewPacker(names{}, func(e *hit.Event) uint16 {
		if e.Return {
			return leave
		}
		return enter
	})
	n := 0
	lost, err := Read(page, func(nanos uint64, data []byte) error {
		h := hit.Hit{Nanos: nanos, TID: int(binary.LittleEndian.Uint32(data[4:])), Event: &in.Event, Comm: "a", Rec: make([]byte, 16+in.Prog.Fixed)}
		if binary.LittleEndian.Uint16(data) == enter {
			if s := binary.LittleEndian.Uint32(data[16:]); s>>16 > 0 {
				binary.LittleEndian.PutUint64(h.Rec[16:], uint64(len(h.Rec))<<32|6)
				h.Rec = append(h.Rec, "hello\x00"...)
			}
			copy(h.Rec[24:], data[20:24])
		} else {
			h.Event, h.Caller = &out.Event, binary.LittleEndian.Uint64(data[16:])
			h.Rec = append(make([]byte, 16), append(bytes.Clone(data[24:28]), 0, 0, 0, 0)...)
		}
		n++
		return p.Add(&h)
	})
	if err != nil || n != 20 || lost != (Lost{}) {
		t.Fatalf("%d records, %+v, %v", n, lost, err)
	}
	p.Flush(0)
	got := p.Pages(0)
	for at := 16; at < len(got); { // the uprobe's flags are those of a context that a process does not have
		w := binary.LittleEndian.Uint32(got[at:])
		if w == 0 {
			break
		}
		copy(got[at+6:at+8], page[at+6:at+8])
		at += 4 + 4*int(w&31)
	}
	if !bytes.Equal(got, page) {
		t.Errorf("other bytes than the kernel's:\n%x\n%x", got[:0x460], page[:0x460])
	}
}

// FuzzRead reads pages of any bytes.
func FuzzRead(f *testing.F) {
	page, err := os.ReadFile("testdata/uprobes.page")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(page)
	f.Add(append(make([]byte, 8), 0xff, 0, 0, 0xc0, 0, 0, 0, 0, 29, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		sum := 0
		_, err := Read(b, func(_ uint64, data []byte) error {
			sum += len(data)
			return nil
		})
		if sum > len(b) || err != nil && !errors.Is(err, ErrPage) {
			t.Errorf("%d bytes of %d, %v", sum, len(b), err)
		}
	})
}

// TestContext has what lines have behind the CPU.
func TestContext(t *testing.T) {
	for text, want := range map[string][2]byte{
		"":        {},
		".....":   {},
		"D.h1.":   {FlagIRQsOff | FlagBHOff | FlagHardIRQ, 1},
		"bNsf.":   {FlagBHOff | FlagResched | FlagSoftIRQ, 15},
		"dNH.":    {FlagIRQsOff | FlagResched | FlagHardIRQ | FlagSoftIRQ, 0},
		"d.zb":    {FlagIRQsOff | FlagNMI, 11},
		"d..Z3..": {FlagIRQsOff | FlagNMI | FlagHardIRQ, 3},
	} {
		var c [8]byte
		copy(c[:], text)
		if flags, preempt := context(&c); [2]byte{flags, preempt} != want {
			t.Errorf("%q: %#x, %d, want %v", text, flags, preempt, want)
		}
	}
}

// TestDamaged has records that do not fit their events.
func TestDamaged(t *testing.T) {
	e := newEvent(t, 1, "p:b f n=%di:s32 s=+0(%di):string")
	p := NewPacker(names{}, func(*hit.Event) uint16 { return 1 })
	for _, rec := range [][]byte{nil, make([]byte, 20), append(make([]byte, 24), 9, 0, 0, 0, 1, 0, 0, 0)} {
		if err := p.Add(&hit.Hit{Event: &e.Event, Rec: rec}); !errors.Is(err, fetch.ErrRecord) {
			t.Errorf("%x: %v", rec, err)
		}
	}
	p.Flush(0)
	if b := p.Pages(0); len(b) != 0 {
		t.Errorf("%d bytes of damaged records", len(b))
	}
}

// TestLate gives a record that comes late the time of the one before.
func TestLate(t *testing.T) {
	e := newEvent(t, 1, "p:a f")
	p := NewPacker(names{}, func(*hit.Event) uint16 { return 1 })
	for _, at := range []uint64{100, 90, 110} {
		if err := p.Add(&hit.Hit{Event: &e.Event, Nanos: at, Rec: make([]byte, 16)}); err != nil {
			t.Fatal(err)
		}
	}
	p.Flush(0)
	var got []uint64
	if _, err := Read(p.Pages(0), func(nanos uint64, _ []byte) error { got = append(got, nanos); return nil }); err != nil || fmt.Sprint(got) != "[100 100 110]" {
		t.Errorf("%v, %v", got, err)
	}
}

// BenchmarkPacker packs hits on two CPUs, and takes the pages whenever there are many.
func BenchmarkPacker(b *testing.B) {
	for _, d := range []string{"p:four f a=%di b=%si c=%dx d=%ax:s32", "r:ret f r=$retval:s64", "p:str f s=+0(%di):string n=%di"} {
		e := newEvent(b, 1, d)
		b.Run(e.Name, func(b *testing.B) {
			p := NewPacker(names{}, func(*hit.Event) uint16 { return 1 })
			h := hit.Hit{Event: &e.Event, TID: 7, Caller: 0x1234, Rec: make([]byte, 16+e.Prog.Fixed)}
			if e.Prog.Dynamic {
				binary.LittleEndian.PutUint64(h.Rec[16:], uint64(len(h.Rec))<<32|12)
				h.Rec = append(h.Rec, "/etc/passwd\x00"...)
			}
			bytes := 0
			b.ReportAllocs()
			for i := range b.N {
				h.CPU, h.Nanos = i&1, uint64(i)*200
				if err := p.Add(&h); err != nil {
					b.Fatal(err)
				}
				if i%(1<<14) == 0 {
					bytes += len(p.Pages(0)) + len(p.Pages(1))
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
