package tracedat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/ringpage"
)

// ErrFile is a file that is no trace.dat file of version 6, or is damaged.
var ErrFile = errors.New("not a trace.dat file of version 6")

// File is a file that is read.
type File struct {
	file    *os.File
	size    int64
	events  map[uint16]*eventFormat
	symbols []Symbol // by address
	threads map[int]string
	cpus    []*cpuReader
}

// Open opens a file. The errors of one that cannot be read wrap ErrFile.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	r := &File{file: f, size: st.Size(), events: map[uint16]*eventFormat{}, threads: map[int]string{}}
	d := &decoder{r: io.NewSectionReader(f, 0, r.size), left: r.size}
	r.parse(d)
	if d.err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, d.err)
	}
	return r, nil
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// CPUs is the number of CPUs of the file.
func (f *File) CPUs() int { return len(f.cpus) }

// decoder reads the parts of a file, and remembers the first error.
type decoder struct {
	r    io.Reader
	left int64
	err  error
}

func (d *decoder) bad(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrFile, fmt.Sprintf(format, args...))
	}
}

// bytes reads n bytes; of what the file does not have it allocates nothing.
func (d *decoder) bytes(n uint64) []byte {
	if d.err == nil && n > uint64(d.left) {
		d.bad("a part of %d bytes, where %d are left", n, d.left)
	}
	if d.err != nil {
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(d.r, b); err != nil {
		d.err = err
	}
	d.left -= int64(n)
	return b
}

func (d *decoder) number(n int) uint64 {
	var b [8]byte
	copy(b[:], d.bytes(uint64(n)))
	return binary.LittleEndian.Uint64(b[:])
}

func (d *decoder) text(size int) string { return string(d.bytes(d.number(size))) }

// name reads up to a NUL.
func (d *decoder) name() string {
	var s []byte
	for d.err == nil {
		b := d.bytes(1)
		if len(b) == 0 || b[0] == 0 {
			break
		}
		s = append(s, b[0])
	}
	return string(s)
}

// want reads what stands in each file.
func (d *decoder) want(s string) {
	if got := string(d.bytes(uint64(len(s)))); d.err == nil && got != s {
		d.bad("%q, where %q is to stand", got, s)
	}
}

// parse reads all but the pages.
func (f *File) parse(d *decoder) {
	d.want(magic)
	if v := d.name(); d.err == nil && v != "6" {
		d.bad("it has version %s: trace-cmd convert --file-version 6 makes one of it", v)
	}
	if order, long := d.number(1), d.number(1); d.err == nil && (order != 0 || long != longSize) {
		d.bad("it is of a machine of another byte order, or of %d bits", 8*long)
	}
	size := d.number(4)
	if d.err == nil && (size < pageSize || size > 1<<20) {
		d.bad("pages of %d bytes", size)
	}
	d.want(headerPage)
	if head := d.text(8); d.err == nil && !strings.Contains(head, "char data;\toffset:16;") {
		d.bad("its pages begin in another way")
	}
	d.want(headerEvent)
	d.text(8)
	f.formats(d)
	f.parseSymbols(d.text(4))
	d.text(4)
	for line := range strings.Lines(d.text(8)) {
		tid, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.Atoi(tid); err == nil {
			f.threads[n] = name
		}
	}
	cpus := d.number(4)
	mark := string(d.bytes(uint64(len(optionsMark))))
	if mark == optionsMark {
		for d.number(2) != optionEnd && d.err == nil {
			d.text(4)
		}
		mark = string(d.bytes(uint64(len(pagesMark))))
	}
	if d.err == nil && mark != pagesMark {
		d.bad("%q, where pages of CPUs are to be", mark)
	}
	for cpu := uint64(0); cpu < cpus && d.err == nil; cpu++ {
		at, n := d.number(8), d.number(8)
		if d.err == nil && (at > uint64(f.size) || n > uint64(f.size)-at) {
			d.bad("pages of CPU %d at %d, %d bytes: behind the end", cpu, at, n)
		}
		f.cpus = append(f.cpus, &cpuReader{cpu: int(cpu), r: io.NewSectionReader(f.file, int64(at), int64(n)), page: make([]byte, size)})
	}
}

// formats reads the formats of events.
func (f *File) formats(d *decoder) {
	list := func(group string) {
		for n := d.number(4); n > 0 && d.err == nil; n-- {
			if e := parseFormat(d.text(8)); e != nil {
				e.group = group
				f.events[e.id] = e
			}
		}
	}
	list(ftraceGroup)
	for n := d.number(4); n > 0 && d.err == nil; n-- {
		list(d.name())
	}
}

// cpuReader reads the records of a CPU.
type cpuReader struct {
	cpu  int
	r    io.Reader
	page []byte
	recs []rawRecord
	lost ringpage.Lost
	pos  int
}

type rawRecord struct {
	nanos uint64
	data  []byte
}

// fill reads the next page, if all of the last was taken; false: there is none.
func (c *cpuReader) fill() (bool, error) {
	for c.pos >= len(c.recs) {
		switch _, err := io.ReadFull(c.r, c.page); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return false, nil
		case err != nil:
			return false, err
		}
		c.recs, c.pos = c.recs[:0], 0
		lost, err := ringpage.Read(c.page, func(nanos uint64, data []byte) error {
			c.recs = append(c.recs, rawRecord{nanos, data})
			return nil
		})
		if err != nil {
			return false, fmt.Errorf("CPU %d: %w", c.cpu, err)
		}
		c.lost = lost
	}
	return true, nil
}

// Each hands over all records in the order of their times. A record is valid until f returns.
func (f *File) Each(take func(*Record) error) error {
	for {
		var next *cpuReader
		for _, c := range f.cpus {
			ok, err := c.fill()
			if err != nil {
				return err
			}
			if ok && (next == nil || c.recs[c.pos].nanos < next.recs[next.pos].nanos) {
				next = c
			}
		}
		if next == nil {
			return nil
		}
		r := next.recs[next.pos]
		rec := Record{CPU: next.cpu, Nanos: r.nanos, Lost: next.lost, data: r.data}
		next.pos++
		next.lost = ringpage.Lost{}
		if len(r.data) >= 8 {
			rec.TID, rec.event = int(int32(binary.LittleEndian.Uint32(r.data[4:]))), f.events[binary.LittleEndian.Uint16(r.data)]
		}
		if err := take(&rec); err != nil {
			return err
		}
	}
}

// Record is a record of a file.
type Record struct {
	CPU, TID int
	Nanos    uint64
	Lost     ringpage.Lost // before it, on its CPU
	event    *eventFormat
	data     []byte
}
