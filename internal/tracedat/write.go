package tracedat

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/ringpage"
)

// Contents is what a file holds beside the pages.
type Contents struct {
	Formats []Format // as events/GRP/EVENT/format
	Symbols []Symbol
	Threads map[int]string // names of threads by number
	Clock   string         // the name of the clock, as in trace_clock
	System  string         // the machine, as uname -a
	Version string         // who has written the file
}

// Format is the format file of an event.
type Format struct{ Group, Text string }

// Pages are those of a CPU.
type Pages struct {
	Data  io.Reader
	Bytes int64 // a multiple of the page's size
}

// Write writes a file. cpus has the pages of each CPU, by its number.
func Write(w io.Writer, c *Contents, cpus []Pages) error {
	e := &encoder{w: bufio.NewWriterSize(w, 1<<20)}
	e.text(magic + version)
	e.write([]byte{0, longSize})
	e.u32(pageSize)
	e.text(headerPage)
	e.long(ringpage.HeaderPage)
	e.text(headerEvent)
	e.long(ringpage.HeaderEvent)
	e.formats(c.Formats)
	e.short(kallsyms(c.Symbols))
	e.short("") // printk_formats
	e.long(comms(c.Threads))
	e.u32(uint32(len(cpus)))
	e.options(c, len(cpus))
	e.pages(cpus)
	return cmp.Or(e.err, e.w.Flush())
}

// encoder writes the parts of a file, and remembers the first error.
type encoder struct {
	w   *bufio.Writer
	n   int64 // bytes written
	err error
}

func (e *encoder) write(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
		e.n += int64(len(b))
	}
}

func (e *encoder) text(s string) { e.write([]byte(s)) }
func (e *encoder) u16(v uint16)  { e.write(binary.LittleEndian.AppendUint16(nil, v)) }
func (e *encoder) u32(v uint32)  { e.write(binary.LittleEndian.AppendUint32(nil, v)) }
func (e *encoder) u64(v uint64)  { e.write(binary.LittleEndian.AppendUint64(nil, v)) }

// short writes a text behind its length in 4 bytes, long in 8.
func (e *encoder) short(s string) {
	e.u32(uint32(len(s)))
	e.text(s)
}

func (e *encoder) long(s string) {
	e.u64(uint64(len(s)))
	e.text(s)
}

// ftraceGroup is the system of ftrace's own events.
const ftraceGroup = "ftrace"

// formats writes the formats of events by their systems.
func (e *encoder) formats(all []Format) {
	var names []string
	by := map[string][]string{}
	for _, f := range all {
		if f.Group != ftraceGroup && by[f.Group] == nil {
			names = append(names, f.Group)
		}
		by[f.Group] = append(by[f.Group], f.Text)
	}
	list := func(texts []string) {
		e.u32(uint32(len(texts)))
		for _, t := range texts {
			e.long(t)
		}
	}
	list(by[ftraceGroup])
	e.u32(uint32(len(names)))
	for _, name := range names {
		e.text(name + "\x00")
		list(by[name])
	}
}

// kallsyms are symbols in the form of /proc/kallsyms. Behind a symbol whose size is known stands its end, as an absolute symbol of the
// same name: trace-cmd, and whoever else knows that file, leaves these out, for an absolute symbol is no address.
// Of the last symbol trace-cmd knows no other address than its first: _end is the last.
func kallsyms(all []Symbol) string {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
	var b strings.Builder
	for i := range all {
		s := &all[i]
		module := ""
		if s.Module != "" {
			module = "\t[" + symbolName(s.Module) + "]"
		}
		fmt.Fprintf(&b, "%016x T %s%s\n", s.Addr, symbolName(s.Name), module)
		if s.Size > 0 && s.Addr+s.Size > s.Addr {
			fmt.Fprintf(&b, "%016x A %s\n", s.Addr+s.Size, symbolName(s.Name))
		}
	}
	if n := len(all); n > 0 {
		fmt.Fprintf(&b, "%016x T _end\n", all[n-1].Addr+max(all[n-1].Size, 1))
	}
	return b.String()
}

// symbolName is a name as a line of kallsyms can hold it: what separates words there is replaced.
func symbolName(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}

// comms are the names of threads.
func comms(names map[int]string) string {
	var tids []int
	for tid := range names {
		tids = append(tids, tid)
	}
	slices.Sort(tids)
	var b strings.Builder
	for _, tid := range tids {
		fmt.Fprintf(&b, "%d %s\n", tid, strings.ReplaceAll(names[tid], "\n", "?"))
	}
	return b.String()
}

// options writes the options.
func (e *encoder) options(c *Contents, cpus int) {
	e.text(optionsMark)
	option := func(id uint16, data string) {
		e.u16(id)
		e.short(data)
	}
	option(optionTraceClock, "["+c.Clock+"]\n\x00")
	option(optionUname, c.System+"\x00")
	option(optionCPUCount, string(binary.LittleEndian.AppendUint32(nil, uint32(cpus))))
	option(optionVersion, c.Version+"\x00")
	e.u16(optionEnd)
}

// pages writes where the pages are, and the pages.
func (e *encoder) pages(cpus []Pages) {
	e.text(pagesMark)
	at := align(e.n + int64(16*len(cpus)))
	for _, c := range cpus {
		e.u64(uint64(at))
		e.u64(uint64(c.Bytes))
		at = align(at + c.Bytes)
	}
	for _, c := range cpus {
		e.write(make([]byte, align(e.n)-e.n))
		if e.err == nil {
			_, e.err = io.CopyN(e.w, c.Data, c.Bytes)
			e.n += c.Bytes
		}
	}
}

func align(n int64) int64 { return (n + pageSize - 1) &^ (pageSize - 1) }
