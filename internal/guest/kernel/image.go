package kernel

import (
	"debug/elf"
	"encoding/binary"
	"io"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
	_ "kprobes.dev/kprobes/native" // names of C++ and Rust
)

// Image gives the kernel as an ELF file that is made up on the fly: its symbols from
// kallsyms, its code and data as they are in memory at the moment of a read. Link-time
// addresses are the addresses where the kernel runs: it belongs into a symbol.Space with
// bias 0. The image is called vmlinux.
func (k *Kernel) Image() (*symbol.Image, error) {
	text := k.Text()
	segs := cut(interval.Range{Start: k.image.Start, End: k.imageEnd()}, text)
	if r, ok := k.between("__per_cpu_start", "__per_cpu_end"); ok && r.Start < lowestText {
		segs = append(segs, segment{Range: r, bss: true})
	}
	return k.newImage("vmlinux", k.syms, text, segs)
}

// imageEnd is the end of the kernel's memory.
func (k *Kernel) imageEnd() uint64 {
	end := k.image.Start
	for _, name := range []string{"_end", "__brk_limit", "__bss_stop", "_etext"} {
		if va, ok := k.Addr(name); ok {
			end = max(end, va)
		}
	}
	return min((end+pageSize-1)&^(pageSize-1), k.image.Start+1<<30)
}

// Image gives the module as an ELF file, as Kernel.Image does for the kernel.
func (m *Module) Image() (*symbol.Image, error) {
	segs := []segment{{Range: m.Text, exec: true}}
	for _, d := range m.Data {
		segs = append(segs, segment{Range: d})
	}
	return m.kernel.newImage(m.Name, m.Symbols, []interval.Range{m.Text}, segs)
}

// segment is a PT_LOAD.
type segment struct {
	interval.Range
	exec bool
	bss  bool   // there is nothing to read
	off  uint64 // file offset
}

// cut parts a range into code and the rest.
func cut(r interval.Range, text []interval.Range) []segment {
	var segs []segment
	at := r.Start
	for _, t := range text {
		if at < t.Start {
			segs = append(segs, segment{Range: interval.Range{Start: at, End: t.Start}})
		}
		segs = append(segs, segment{Range: t, exec: true})
		at = t.End
	}
	if at < r.End {
		segs = append(segs, segment{Range: interval.Range{Start: at, End: r.End}})
	}
	return segs
}

// image is the ELF file: head holds the headers and symbols, contents are behind it.
type image struct {
	k    *Kernel
	head []byte
	segs []segment
	size uint64
}

func (k *Kernel) newImage(name string, syms []Symbol, text []interval.Range, segs []segment) (*symbol.Image, error) {
	im := &image{k: k, segs: slices.DeleteFunc(segs, func(s segment) bool { return s.Start >= s.End })}
	im.build(syms, text)
	return symbol.Open(im, int64(im.size), name, &symbol.Options{Kernel: true, NoDebugFiles: true})
}

// Sizes of the parts of an ELF file, in bytes.
const (
	ehdrSize = 64
	phdrSize = 56
	shdrSize = 64
	symSize  = 24
)

// build writes the head: header, program headers, section headers, symbols, names.
func (im *image) build(syms []Symbol, text []interval.Range) {
	const sectionNames = "\x00.symtab\x00.strtab\x00.shstrtab\x00"
	symtab, strtab := elfSymbols(syms, text)
	shoff := uint64(ehdrSize + phdrSize*len(im.segs))
	nameOff := shoff + 4*shdrSize
	symOff := (nameOff + uint64(len(sectionNames)) + 7) &^ 7
	strOff := symOff + uint64(len(symtab))
	im.size = (strOff + uint64(len(strtab)) + pageSize - 1) &^ (pageSize - 1)
	phdrs := im.programHeaders()

	h := make([]byte, 0, strOff+uint64(len(strtab)))
	h = append(h, elf.ELFMAG...)
	h = append(h, byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT))
	h = append(h, make([]byte, 9)...)
	le := binary.LittleEndian
	h = le.AppendUint16(h, uint16(elf.ET_EXEC))
	h = le.AppendUint16(h, uint16(elf.EM_X86_64))
	h = le.AppendUint32(h, uint32(elf.EV_CURRENT))
	h = le.AppendUint64(h, 0) // entry
	h = le.AppendUint64(h, ehdrSize)
	h = le.AppendUint64(h, shoff)
	h = le.AppendUint32(h, 0)
	for _, v := range []int{ehdrSize, phdrSize, len(im.segs), shdrSize, 4, 3} {
		h = le.AppendUint16(h, uint16(v))
	}
	h = append(h, phdrs...)
	h = append(h, make([]byte, shdrSize)...)
	h = appendSection(h, 1, elf.SHT_SYMTAB, symOff, len(symtab), 2, symSize)
	h = appendSection(h, 9, elf.SHT_STRTAB, strOff, len(strtab), 0, 0)
	h = appendSection(h, 17, elf.SHT_STRTAB, nameOff, len(sectionNames), 0, 0)
	h = append(h, sectionNames...)
	h = append(h, make([]byte, symOff-uint64(len(h)))...)
	h = append(h, symtab...)
	im.head = append(h, strtab...)
}

// programHeaders places the contents of the segments behind the head.
func (im *image) programHeaders() []byte {
	var b []byte
	le := binary.LittleEndian
	for i := range im.segs {
		s := &im.segs[i]
		memsz := s.End - s.Start
		flags, filesz := elf.PF_R|elf.PF_W, memsz
		if s.exec {
			flags = elf.PF_R | elf.PF_X
		}
		if s.bss {
			filesz = 0
		}
		s.off = im.size
		im.size += (filesz + pageSize - 1) &^ (pageSize - 1)
		b = le.AppendUint32(b, uint32(elf.PT_LOAD))
		b = le.AppendUint32(b, uint32(flags))
		for _, v := range []uint64{s.off, s.Start, s.Start, filesz, memsz, 1} {
			b = le.AppendUint64(b, v)
		}
	}
	return b
}

func appendSection(h []byte, name uint32, typ elf.SectionType, off uint64, size int, link uint32, entsize uint64) []byte {
	le := binary.LittleEndian
	h = le.AppendUint32(h, name)
	h = le.AppendUint32(h, uint32(typ))
	h = le.AppendUint64(h, 0) // flags
	h = le.AppendUint64(h, 0) // address
	h = le.AppendUint64(h, off)
	h = le.AppendUint64(h, uint64(size))
	h = le.AppendUint32(h, link)
	h = le.AppendUint32(h, 0)
	h = le.AppendUint64(h, 8)
	return le.AppendUint64(h, entsize)
}

// elfSymbols writes the symbol table and its names. The size of a symbol reaches to the next
// address that has one.
func elfSymbols(syms []Symbol, text []interval.Range) (symtab, strtab []byte) {
	le := binary.LittleEndian
	symtab = make([]byte, symSize, symSize*(len(syms)+1))
	strtab = append(make([]byte, 0, 20*len(syms)), 0)
	for i := 0; i < len(syms); {
		next := end(syms, i)
		for addr := syms[i].Addr; i < len(syms) && syms[i].Addr == addr; i++ {
			s := &syms[i]
			symtab = le.AppendUint32(symtab, uint32(len(strtab)))
			symtab = append(symtab, elf.ST_INFO(s.bind(), s.elfType(text)), 0)
			symtab = le.AppendUint16(symtab, 1) // any section of the file's own
			symtab = le.AppendUint64(symtab, addr)
			symtab = le.AppendUint64(symtab, next-addr)
			strtab = append(append(strtab, s.Name...), 0)
		}
	}
	return symtab, strtab
}

func (s *Symbol) bind() elf.SymBind {
	switch {
	case s.Type == 'w' || s.Type == 'W' || s.Type == 'v' || s.Type == 'V':
		return elf.STB_WEAK
	case s.Type >= 'a' && s.Type <= 'z':
		return elf.STB_LOCAL
	}
	return elf.STB_GLOBAL
}

// elfType tells functions from the rest: what stands in code, but for the room before a
// function's entry, which has a name of its own.
func (s *Symbol) elfType(text []interval.Range) elf.SymType {
	if !slices.ContainsFunc(text, func(r interval.Range) bool { return r.Contains(s.Addr) }) || s.preamble() {
		return elf.STT_OBJECT
	}
	switch s.Type {
	case 't', 'T', 'w', 'W':
		return elf.STT_FUNC
	}
	return elf.STT_OBJECT
}

// preamble says that the symbol names what stands before a function: padding for call
// thunks, or a hash for control-flow integrity.
func (s *Symbol) preamble() bool {
	return strings.HasPrefix(s.Name, "__pfx_") || strings.HasPrefix(s.Name, "__cfi_")
}

// ReadAt serves the file: the head, then live memory. Bytes between the segments are 0.
func (im *image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || uint64(off) >= im.size {
		return 0, io.EOF
	}
	done := 0
	for done < len(p) {
		at := uint64(off) + uint64(done)
		if at >= im.size {
			return done, io.EOF
		}
		n, err := im.readPart(p[done:], at)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// readPart reads from one part of the file, at least one byte.
func (im *image) readPart(p []byte, at uint64) (int, error) {
	if at < uint64(len(im.head)) {
		return copy(p, im.head[at:]), nil
	}
	next := im.size
	for i := range im.segs {
		s := &im.segs[i]
		if s.bss {
			continue
		}
		if d := at - s.off; at >= s.off && d < s.End-s.Start {
			n := int(min(uint64(len(p)), s.End-s.Start-d))
			if err := im.k.Read(s.Start+d, p[:n]); err != nil {
				return 0, err
			}
			return n, nil
		}
		if s.off > at {
			next = min(next, s.off)
		}
	}
	n := int(min(uint64(len(p)), next-at))
	clear(p[:n])
	return n, nil
}
