package kmod

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// ErrObject is an object that can not be a module. The errors that wrap it say why, and what to do.
var ErrObject = errors.New("no module")

// Object is what a compiler has made of a module.
type Object struct {
	Info []Info // in the order of the object

	machine  *objfile.Machine
	sections []*section // that are loaded
	symbols  []symbol
	relocs   []reloc
	bytes    uint64 // that the sections take

	functions []function
}

// function is a function of an object.
type function struct {
	name  string
	in    *section
	value uint64 // bytes from the start of the section
	size  uint64
}

// Info is one thing that a module tells of itself: MODULE_LICENSE and its like.
type Info struct{ Tag, Text string }

// Tags of Info.
const (
	TagLicense     = "license"
	TagDescription = "description"
	TagParam       = "parm"     // NAME:TEXT
	TagParamType   = "parmtype" // NAME:TYPE
	tagABI         = "kpabi"
)

// abi is __KP_ABI of the headers.
const abi = "1"

// section is a part of a module.
type section struct {
	name  string
	part  Part
	align uint64
	size  uint64
	data  []byte // nil: all zero
}

// symbol is a name of an object.
type symbol struct {
	name    string
	section *section // nil: it is not the object's, or is absolute
	value   uint64   // bytes from the start of section
	weak    bool
	local   bool
	defined bool // an absolute one, if section is nil
	dropped bool // it lies in a section that is not loaded
}

// reloc is a place that a linker fills in.
type reloc struct {
	objfile.LinkReloc
	in     *section
	off    uint64
	symbol int
	addend int64
}

// Part is a piece of memory of a module.
type Part int

// The parts, each in pages of its own.
const (
	Text   Part = iota // what runs
	Rodata             // what is only read
	Data               // what is written
	PerCPU             // the first CPU's copy of what each has
	Parts
)

// maxObject bounds an object's size in memory, in bytes.
const maxObject = 64 << 20

// Parse reads an object. The errors wrap ErrObject, or are those of reading.
func Parse(r io.ReaderAt) (*Object, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrObject, err)
	}
	o := &Object{machine: objfile.Of(objfile.ELF(f.Machine))}
	switch {
	case f.Class != elf.ELFCLASS64:
		return nil, fmt.Errorf("%w: it is of %v: compile it without -m32 and -mx32", ErrObject, f.Class)
	case f.Type != elf.ET_REL:
		return nil, fmt.Errorf("%w: an object is taken (cc -c), and this file is %v", ErrObject, f.Type)
	case o.machine == nil || !o.machine.Links():
		return nil, fmt.Errorf("%w: it is for %v", ErrObject, objfile.ELF(f.Machine))
	}
	loaded, err := o.readSections(f)
	if err == nil {
		err = o.readInfo(f)
	}
	if err == nil {
		err = o.readSymbols(f, loaded)
	}
	if err == nil {
		err = o.readRelocs(f, loaded)
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

const perCPU = ".data..percpu"

// dropped are sections that are not loaded, though a compiler thinks so.
func dropped(name string) bool {
	return name == ".modinfo" || name == ".eh_frame" || strings.HasPrefix(name, ".note") || strings.HasPrefix(name, ".debug")
}

// starters are sections of functions that somebody would have to call.
var starters = []string{".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors"}

// readSections reads the sections that are loaded.
func (o *Object) readSections(f *elf.File) (loaded map[int]*section, err error) {
	loaded = map[int]*section{}
	for i, s := range f.Sections {
		switch {
		case slices.ContainsFunc(starters, func(p string) bool { return strings.HasPrefix(s.Name, p) }):
			return nil, fmt.Errorf("%w: section %s: functions that run before module_init are not called: call them there", ErrObject, s.Name)
		case s.Flags&elf.SHF_ALLOC == 0 || dropped(s.Name):
			continue
		case s.Flags&elf.SHF_TLS != 0:
			return nil, fmt.Errorf("%w: section %s: variables of threads are the program's: use DEFINE_PER_CPU", ErrObject, s.Name)
		case s.Addralign > pageSize || s.Addralign&(s.Addralign-1) != 0:
			return nil, fmt.Errorf("%w: section %s is aligned to %d bytes", ErrObject, s.Name, s.Addralign)
		}
		if err := o.take(s.Size); err != nil {
			return nil, err
		}
		sec := &section{name: s.Name, part: partOf(s), align: max(s.Addralign, 1), size: s.Size}
		if s.Type != elf.SHT_NOBITS {
			if sec.data, err = s.Data(); err != nil {
				return nil, fmt.Errorf("%w: section %s: %w", ErrObject, s.Name, err)
			}
		}
		loaded[i] = sec
		o.sections = append(o.sections, sec)
	}
	return loaded, nil
}

// take counts what a section takes.
func (o *Object) take(bytes uint64) error {
	if o.bytes += bytes; bytes > maxObject || o.bytes > maxObject {
		return fmt.Errorf("%w: it takes more than %d bytes", ErrObject, maxObject)
	}
	return nil
}

func partOf(s *elf.Section) Part {
	switch {
	case s.Flags&elf.SHF_EXECINSTR != 0:
		return Text
	case s.Name == perCPU:
		return PerCPU
	case s.Flags&elf.SHF_WRITE != 0:
		return Data
	}
	return Rodata
}

// readInfo reads what the module tells of itself.
func (o *Object) readInfo(f *elf.File) error {
	s := f.Section(".modinfo")
	if s == nil {
		return fmt.Errorf("%w: it has no section .modinfo: include <linux/module.h>, and compile it with kprobe cc", ErrObject)
	}
	b, err := s.Data()
	if err != nil {
		return fmt.Errorf("%w: section .modinfo: %w", ErrObject, err)
	}
	for _, text := range bytes.Split(b, []byte{0}) {
		if tag, value, ok := strings.Cut(string(text), "="); ok {
			o.Info = append(o.Info, Info{tag, value})
		}
	}
	switch made := o.Tagged(tagABI); {
	case len(made) == 0:
		return fmt.Errorf("%w: it was compiled with the headers of a kernel: compile it with kprobe cc", ErrObject)
	case made[0] != abi:
		return fmt.Errorf("%w: it was compiled with headers of version %s, and these are of version %s: compile it again with kprobe cc", ErrObject, made[0], abi)
	}
	return nil
}

// Section is a section of an object, or a function in one.
type Section struct {
	Name  string
	Bytes []byte
}

// Code are the sections that hold code, as they are before they are linked: instructions have their lengths.
func (o *Object) Code() (code []Section) {
	for _, s := range o.sections {
		if s.part == Text {
			code = append(code, Section{s.name, s.data})
		}
	}
	return code
}

// Functions are the functions, by their names, as they are before they are linked.
func (o *Object) Functions() (all []Section) {
	for _, f := range o.functions {
		all = append(all, Section{f.name, f.in.data[f.value:][:f.size]})
	}
	return all
}

// Tagged gives the texts of a tag, in their order.
func (o *Object) Tagged(tag string) (texts []string) {
	for _, i := range o.Info {
		if i.Tag == tag {
			texts = append(texts, i.Text)
		}
	}
	return texts
}

// readSymbols reads the symbols. What is common gets a place of its own.
func (o *Object) readSymbols(f *elf.File, loaded map[int]*section) error {
	all, err := f.Symbols()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrObject, err)
	}
	o.symbols = make([]symbol, 1, len(all)+1) // the first one has no name
	for _, s := range all {
		out := symbol{name: s.Name, value: s.Value, weak: elf.ST_BIND(s.Info) == elf.STB_WEAK, local: elf.ST_BIND(s.Info) == elf.STB_LOCAL}
		kind := elf.ST_TYPE(s.Info)
		switch {
		case kind == elf.STT_GNU_IFUNC:
			return fmt.Errorf("%w: symbol %s: a function that is chosen when it is loaded (ifunc) is not taken", ErrObject, s.Name)
		case s.Section == elf.SHN_COMMON:
			if s.Value > pageSize || s.Value&(s.Value-1) != 0 {
				return fmt.Errorf("%w: symbol %s is aligned to %d bytes", ErrObject, s.Name, s.Value)
			}
			if err := o.take(s.Size + s.Value); err != nil {
				return err
			}
			out.section = &section{name: "COMMON", part: Data, align: max(s.Value, 1), size: s.Size}
			out.value, out.defined = 0, true
			o.sections = append(o.sections, out.section)
		case s.Section == elf.SHN_ABS:
			out.defined = true
		case s.Section != elf.SHN_UNDEF:
			out.section = loaded[int(s.Section)]
			out.defined = out.section != nil
			out.dropped = !out.defined
			if out.defined && s.Value > out.section.size {
				return fmt.Errorf("%w: symbol %s lies %d bytes behind the start of section %s, which has %d", ErrObject, s.Name, s.Value, out.section.name, out.section.size)
			}
			if out.defined && kind == elf.STT_FUNC && out.section.part == Text && out.section.data != nil {
				o.functions = append(o.functions, function{s.Name, out.section, s.Value, min(s.Size, out.section.size-s.Value)})
			}
		}
		o.symbols = append(o.symbols, out)
	}
	return nil
}

// relaSize is the bytes of an Elf64_Rela.
const relaSize = 24

// shtCREL is a section of relocations in a shorter form, which debug/elf does not know (LLVM 19).
const shtCREL = elf.SectionType(0x40000014)

// readRelocs reads the relocations of what is loaded.
func (o *Object) readRelocs(f *elf.File, loaded map[int]*section) error {
	for _, s := range f.Sections {
		in := loaded[int(s.Info)]
		switch {
		case in == nil || s.Type != elf.SHT_RELA && s.Type != elf.SHT_REL && s.Type != shtCREL:
			continue
		case s.Type != elf.SHT_RELA:
			return fmt.Errorf("%w: section %s has relocations in the form of %v: compile it without -Wa,--crel", ErrObject, in.name, s.Type)
		}
		b, err := s.Data()
		if err != nil {
			return fmt.Errorf("%w: section %s: %w", ErrObject, s.Name, err)
		}
		for ; len(b) >= relaSize; b = b[relaSize:] {
			off, info, addend := f.ByteOrder.Uint64(b), f.ByteOrder.Uint64(b[8:]), int64(f.ByteOrder.Uint64(b[16:]))
			r, ok := o.machine.Reloc(uint32(info))
			n := info >> 32
			switch {
			case !ok:
				return fmt.Errorf("%w: section %s has a relocation of type %v: compile it with -fno-pic -mcmodel=kernel, as kprobe cc does", ErrObject, in.name, uint32(info))
			case n < uint64(len(o.symbols)) && o.symbols[n].dropped:
				return fmt.Errorf("%w: section %s refers to a section that is not loaded", ErrObject, in.name)
			case n >= uint64(len(o.symbols)) || off > in.size || in.size-off < uint64(r.Size) || in.data == nil:
				return fmt.Errorf("%w: section %s has a relocation at %#x that it can not have", ErrObject, in.name, off)
			}
			o.relocs = append(o.relocs, reloc{LinkReloc: r, in: in, off: off, symbol: int(n), addend: addend})
		}
	}
	return nil
}

// Undefined are the names that the object uses and has not, in order. Weak ones may stay without an address.
func (o *Object) Undefined() (names []string) {
	used := map[int]bool{}
	for _, r := range o.relocs {
		used[r.symbol] = true
	}
	for i := range o.symbols {
		if s := &o.symbols[i]; used[i] && !s.defined && s.name != "" {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
