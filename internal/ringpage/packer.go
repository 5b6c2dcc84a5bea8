package ringpage

import (
	"encoding/binary"
	"fmt"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// Packer packs hits into pages, for each CPU its own. It is not safe for use by several goroutines.
type Packer struct {
	// Address gives, if it is set, what a record holds of an address of a hit that is shown by its name: the place, the caller, arguments of the
	// type symbol. It is set before the first Add.
	Address func(addr uint64) uint64
	// Stacks has the callers of a hit packed behind it, as a record of the number StackID. It is set before the first Add.
	Stacks bool

	// Names tells the names of threads and addresses that records hold as strings ($comm, symstr). Hits of several targets come each with
	// its own.
	Names hit.Namer

	id      func(*hit.Event) uint16
	layouts map[*hit.Event]*layout
	last    *layout
	cpus    []*stream
	values  []fetch.Value
	record  []byte
	frames  []fetch.StackFrame
}

// stream is the pages of a CPU.
type stream struct {
	pages []byte // whole ones, and behind them the page that is written to, if open
	other []byte // what Pages has given
	open  bool
	at    int    // offset of the open page
	next  int    // offset of the next record
	end   int    // offset behind the last byte that a record may have
	nanos uint64 // of the last record
	lost  uint64 // records that were lost before the open page
	gone  uint64 // records that were lost since
}

// NewPacker makes a packer. id gives the number of an event, its common_type; it is asked once for each, until Forget.
func NewPacker(names hit.Namer, id func(*hit.Event) uint16) *Packer {
	return &Packer{Names: names, id: id, layouts: map[*hit.Event]*layout{}}
}

// Add packs a hit. Hits of a CPU come in the order of their times; one that comes late gets the time of the one before it. The strings of a
// record that would not fit a page are cut. A hit whose record is damaged is left out; the error says why and wraps fetch.ErrRecord.
func (p *Packer) Add(h *hit.Hit) error {
	if h.Event.Message {
		p.message(h)
		return nil
	}
	if err := p.add(h); err != nil || !p.Stacks {
		return err
	}
	return p.stack(h)
}

func (p *Packer) add(h *hit.Hit) error {
	l := p.last
	if l == nil || l.ev != h.Event {
		l = p.layout(h.Event)
	}
	if h.CPU < 0 || len(h.Rec)-h.Event.ArgsOff < l.argsSize {
		return fmt.Errorf("%w: %d bytes on CPU %d, too short for arguments of %d at %d", fetch.ErrRecord, len(h.Rec), h.CPU, l.argsSize, h.Event.ArgsOff)
	}
	args := h.Rec[min(h.Event.ArgsOff, len(h.Rec)):]
	if len(l.texts)+len(l.numbers) == 0 {
		p.fixed(p.stream(h.CPU).reserve(h.Nanos, l.fixed), l, h, args)
		return nil
	}
	if cap(p.record) == 0 {
		p.record = make([]byte, 0, PageSize)
	}
	rec := p.record[:l.fixed]
	p.fixed(rec, l, h, args)
	vs, err := h.Event.Prog.DecodeInto(p.values[:0], h.Rec, h.Event.ArgsOff, p.comm(h))
	if p.values = vs; err != nil {
		return err
	}
	if h.Unknown {
		fetch.HideResults(vs)
	}
	rec = l.rest(rec, h, vs, p.Names)
	copy(p.stream(h.CPU).reserve(h.Nanos, len(rec)), rec)
	return nil
}

// fixed writes the fields that are made of a hit's bytes.
func (p *Packer) fixed(dst []byte, l *layout, h *hit.Hit, args []byte) {
	l.head(dst, h)
	l.plain(dst, args, h.Unknown)
	if p.Address != nil {
		l.addresses(dst, p.Address)
	}
}

// Forget forgets an event of which no hit follows.
func (p *Packer) Forget(e *hit.Event) {
	delete(p.layouts, e)
	if p.last != nil && p.last.ev == e {
		p.last = nil
	}
}

// message packs a line of text as the kernel's print event (print_entry in kernel/trace/trace_entries.h, Linux 6.18), whose place is 0.
func (p *Packer) message(h *hit.Hit) {
	const place = 8 // bytes
	text := h.Rec[:min(len(h.Rec), MaxRecord-commonSize-place-2)]
	dst := p.stream(h.CPU).reserve(h.Nanos, commonSize+place+len(text)+2)
	clear(dst)
	common(dst, h, PrintID)
	copy(dst[commonSize+place:], text)
	dst[commonSize+place+len(text)] = '\n'
}

// stack packs the function that is probed and its callers as the kernel's kernel_stack event (stack_entry in kernel/trace/trace_entries.h, Linux
// 6.18); of a hit without callers nothing.
func (p *Packer) stack(h *hit.Hit) error {
	fs := p.frames[:0]
	if !h.Event.Return {
		fs = append(fs, fetch.StackFrame{PC: h.Event.Addr, Interrupted: true})
	}
	own := len(fs)
	fs, end, err := h.Callers(fs)
	p.frames = fs
	if err != nil || len(fs) == own && end == fetch.StackWhole {
		return err
	}
	const count, callers = commonSize, commonSize + 8 // bytes
	dst := p.stream(h.CPU).reserve(h.Nanos, callers+8*len(fs))
	common(dst, h, StackID)
	binary.LittleEndian.PutUint64(dst[count:], uint64(len(fs)))
	for i, f := range fs {
		pc := f.PC
		if at := f.At(); p.Address != nil {
			pc += p.Address(at) - at
		}
		binary.LittleEndian.PutUint64(dst[callers+8*i:], pc)
	}
	return nil
}

func (p *Packer) comm(h *hit.Hit) string {
	if h.Comm != "" {
		return h.Comm
	}
	return p.Names.Comm(h.TID)
}

// Lost notes that records of a CPU were lost: the next page says so. The page in progress is closed.
func (p *Packer) Lost(cpu int, n uint64) {
	s := p.stream(cpu)
	s.close()
	s.gone += n
}

// Flush closes the page of a CPU that is being written to, so that Pages gives it.
func (p *Packer) Flush(cpu int) { p.stream(cpu).close() }

// Used is how many bytes the pages of a CPU take that Pages has not given: of the one that is being written to, what is written.
func (p *Packer) Used(cpu int) int {
	s := p.stream(cpu)
	if s.open {
		return s.next
	}
	return len(s.pages)
}

// CPUs is one more than the highest CPU that was named.
func (p *Packer) CPUs() int { return len(p.cpus) }

// Pages takes the pages of a CPU that are whole. They are valid until Pages is called again for the CPU.
func (p *Packer) Pages(cpu int) []byte {
	s := p.stream(cpu)
	n := len(s.pages)
	if s.open {
		n = s.at
	}
	if n == 0 {
		return nil
	}
	out := s.pages[:n]
	s.other = append(s.other[:0], s.pages[n:]...)
	s.pages, s.other = s.other, s.pages
	s.at, s.next, s.end = s.at-n, s.next-n, s.end-n
	return out
}

// layout finds the layout of an event.
func (p *Packer) layout(e *hit.Event) *layout {
	l := p.layouts[e]
	if l == nil {
		l = newLayout(e, p.id(e))
		p.layouts[e] = l
	}
	p.last = l
	return l
}

func (p *Packer) stream(cpu int) *stream {
	for cpu >= len(p.cpus) {
		p.cpus = append(p.cpus, &stream{})
	}
	return p.cpus[cpu]
}

// reserve makes room for a record of n bytes of data. Preconditions: n is at most MaxRecord.
func (s *stream) reserve(nanos uint64, n int) []byte {
	need := size(n)
	delta := uint64(0)
	if nanos > s.nanos {
		delta = nanos - s.nanos
	}
	if delta > maxDelta {
		need += extension
	}
	if !s.open || s.next+need > s.end || delta > stampMask {
		s.close()
		s.begin(max(nanos, s.nanos))
		delta, need = 0, size(n)
	}
	s.nanos += delta
	b := s.pages[s.next : s.next+need]
	s.next += need
	if delta > maxDelta {
		binary.LittleEndian.PutUint32(b, uint32(delta&maxDelta)<<5|typeExtend)
		binary.LittleEndian.PutUint32(b[4:], uint32(delta>>deltaBits))
		b, delta = b[extension:], 0
	}
	at := putHeader(b, delta, n)
	return b[at : at+n]
}

// begin begins a page. A page that tells how many records were lost keeps room for their number; the kernel tells it where there is room.
func (s *stream) begin(nanos uint64) {
	s.at = len(s.pages)
	s.pages = append(s.pages, blank[:]...)
	binary.LittleEndian.PutUint64(s.pages[s.at:], nanos)
	s.open, s.nanos, s.next, s.end = true, nanos, s.at+headerSize, s.at+PageSize
	if s.lost, s.gone = s.gone, 0; s.lost > 0 {
		s.end -= 8
	}
}

var blank [PageSize]byte

// close ends the page that is being written to.
func (s *stream) close() {
	if !s.open {
		return
	}
	s.open = false
	commit := uint64(s.next - s.at - headerSize)
	if s.lost > 0 {
		commit |= missed | counted
		binary.LittleEndian.PutUint64(s.pages[s.next:], s.lost)
	}
	binary.LittleEndian.PutUint64(s.pages[s.at+8:], commit)
}
