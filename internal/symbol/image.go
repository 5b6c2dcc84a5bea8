package symbol

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync"

	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/interval"
)

// DefaultMaxSize is Options.MaxSize where that is 0.
const DefaultMaxSize = 512 << 20

// File is an opened separate debug file. *os.File is one.
type File interface {
	io.ReaderAt
	io.Closer
	Stat() (fs.FileInfo, error)
}

// Options change how an Image is read. Nil and zero fields mean the defaults.
type Options struct {
	// DebugDirs are the roots of separate debug files (default /usr/lib/debug): by
	// build-id under .build-id, by debug link under the program's own directory. An
	// empty non-nil slice looks beside the program only.
	DebugDirs []string
	// Open opens a separate debug file, for instance below /proc/PID/root. The default
	// opens regular files of this machine without blocking.
	Open func(path string) (File, error)
	// NoDebugFiles keeps from looking for separate debug files.
	NoDebugFiles bool
	// MaxSize is the largest table or decompressed .gnu_debugdata in bytes that is read
	// into memory (default DefaultMaxSize).
	MaxSize uint64
	// Kernel says that the file is made of a running kernel's or a module's memory:
	// addresses may be in the upper half, of several names at an address the first in the
	// table is the function's, as kallsyms has it, and there is nothing of a program's in
	// it: no Go, no PLT, no .eh_frame.
	Kernel bool
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.DebugDirs == nil {
		v.DebugDirs = []string{"/usr/lib/debug"}
	}
	if v.Open == nil {
		v.Open = openRegular
	}
	if v.MaxSize == 0 {
		v.MaxSize = DefaultMaxSize
	}
	return v
}

// Image is one ELF file's symbols. It is safe for concurrent use.
type Image struct {
	elf     *elfFile
	opts    Options
	dyn     dynamic
	dynErr  error
	soname  string
	buildID []byte
	exec    []interval.Range // code: executable sections, else executable segments

	once sync.Once
	tab  *table

	funcdataOnce sync.Once
	funcdata     uint64 // see findFuncdata; 0: not found

	readersOnce sync.Once
	readers     Readers

	dataOnce sync.Once
	data     map[string][]int32 // object names to table.objs

	dw Kept[goDWARF] // its debug information
	eh Kept[ehTable] // its frame descriptions

	pcln Kept[pclnData]
	// inlined has how often each Go function was inlined.
	inlined Kept[map[string]int]

	derived derivations
}

// Open reads the headers of an ELF file of size bytes. The path names it in errors, is
// where debug links start from, and gives the name that MOD matches. Errors are
// *FormatError: a foreign, truncated or impossible file (ErrFormat), a reader's error.
func Open(r io.ReaderAt, size int64, path string, o *Options) (*Image, error) {
	im := &Image{opts: o.withDefaults()}
	var err error
	if im.elf, err = parseELF(r, size, path, &im.opts, false); err != nil {
		return nil, err
	}
	im.exec = im.elf.codeRanges()
	im.dyn, im.dynErr = im.elf.readDynamic()
	im.soname = im.readSoname()
	im.buildID = im.elf.readBuildID()
	return im, nil
}

// Load reads the symbol tables now, which else happens at the first call that needs them.
// It gives what Problems gives, joined; the Image is usable all the same.
func (im *Image) Load() error { return errors.Join(im.table().problems...) }

// Problems tells which tables were left out because they are damaged, too large or do not
// belong to this file.
func (im *Image) Problems() []error { return slices.Clone(im.table().problems) }

func (im *Image) table() *table {
	im.once.Do(func() { im.tab = im.load() })
	return im.tab
}

// Path is the path given to Open.
func (im *Image) Path() string { return im.elf.path }

// Type tells whether the file is loaded where it was linked.
func (im *Image) Type() Type {
	if fileType(im.elf.typ) == typeDyn {
		return TypeDyn
	}
	return TypeExec
}

// Machine is the instruction set, EM_X86_64 or EM_AARCH64.
func (im *Image) Machine() objfile.ELF { return im.elf.machine.ELF }

// Entry is the link-time address of the entry point, 0 if there is none.
func (im *Image) Entry() uint64 { return im.elf.entry }

// Interp is the path of the program interpreter (ld.so), "" if there is none.
func (im *Image) Interp() string { return im.elf.interp }

// Soname is DT_SONAME, "" if there is none.
func (im *Image) Soname() string { return im.soname }

// BuildID is the GNU build-id in hex, "" if there is none.
func (im *Image) BuildID() string { return fmt.Sprintf("%x", im.buildID) }

// Static reports a program that needs no interpreter: a static one, PIE or not. Shared
// objects are not static.
func (im *Image) Static() bool {
	const pie = uint64(flag1PIE)
	return !im.elf.hasInterp && im.dyn.needed == 0 && (im.Type() == TypeExec || im.dyn.flags1&pie != 0)
}

// IsProgram reports a file that can be executed, as opposed to a shared object.
func (im *Image) IsProgram() bool {
	return im.Type() == TypeExec || im.elf.hasInterp || im.Static()
}

// IsGo reports whether a Go function table was found: a Go program, or an object that
// holds a Go runtime.
func (im *Image) IsGo() bool { return im.table().goTab != nil }

// GoVersion is the Go toolchain's version ("go1.26.8"), "" for other programs and where
// the build info is missing.
func (im *Image) GoVersion() string {
	if !im.IsGo() {
		return ""
	}
	return im.elf.goVersion()
}

// Segments gives the loadable segments, sorted by address.
func (im *Image) Segments() []Segment { return slices.Clone(im.elf.segs) }

// TextRanges gives the link-time ranges that hold code, sorted and disjoint: executable
// sections, or executable segments where section headers are missing.
func (im *Image) TextRanges() []interval.Range { return slices.Clone(im.exec) }

// InText reports whether a link-time address lies in a text range.
func (im *Image) InText(vaddr uint64) bool { return inRanges(im.exec, vaddr) }

// Executable reports whether a link-time address lies in an executable segment.
func (im *Image) Executable(vaddr uint64) bool {
	s := im.elf.segment(vaddr)
	return s != nil && s.Exec
}

// ReadAt fills buf with the bytes that stand at a link-time address when the file has
// just been loaded, before relocation: file contents, zeros in .bss. The error chain
// holds ErrNotMapped if a byte lies in no loadable segment.
func (im *Image) ReadAt(vaddr uint64, buf []byte) error { return im.elf.readVaddr(vaddr, buf) }

// Vaddr gives the link-time address of a file offset; ok is false if no loadable segment
// holds it. Where several segments map it, an executable one wins.
func (im *Image) Vaddr(fileOff uint64) (vaddr uint64, ok bool) {
	for _, s := range im.elf.segs {
		if d := fileOff - s.Off; d < s.Filesz && (!ok || s.Exec) {
			vaddr, ok = s.Vaddr+d, true
		}
	}
	return vaddr, ok
}

// FileOff gives the file offset of a link-time address; ok is false if it has no contents
// in the file.
func (im *Image) FileOff(vaddr uint64) (off uint64, ok bool) {
	off, _, ok = im.elf.fileRange(vaddr)
	return off, ok
}

// ModName is the base name of the file's path.
func (im *Image) ModName() string { return path.Base(im.elf.path) }

func (im *Image) readSoname() string {
	if !im.dyn.hasSoname {
		return ""
	}
	off, have, ok := im.elf.fileRange(im.dyn.strtab + im.dyn.soname)
	if !ok {
		return ""
	}
	s, err := im.elf.stringAt(off, min(have, 4096), "DT_SONAME")
	if err != nil {
		return ""
	}
	name, _ := cstring(s, 0)
	return name
}

// codeRanges gives the executable sections, else the executable segments.
func (f *elfFile) codeRanges() []interval.Range {
	var rs []interval.Range
	for _, s := range f.sects {
		fl := s.flags
		if fl&secAlloc == 0 || fl&secExecinstr == 0 || s.size == 0 {
			continue
		}
		if g := f.segment(s.addr); g != nil && g.Exec && s.size <= g.Memsz-(s.addr-g.Vaddr) {
			rs = append(rs, interval.Range{Start: s.addr, End: s.addr + s.size})
		}
	}
	if len(rs) == 0 {
		for _, s := range f.segs {
			if s.Exec && s.Memsz > 0 {
				rs = append(rs, interval.Range{Start: s.Vaddr, End: s.Vaddr + s.Memsz})
			}
		}
	}
	return mergeRanges(rs)
}

// mergeRanges sorts ranges and joins those that touch.
func mergeRanges(rs []interval.Range) []interval.Range {
	slices.SortFunc(rs, func(a, b interval.Range) int { return cmpU64(a.Start, b.Start) })
	var out []interval.Range
	for _, r := range rs {
		if n := len(out); n > 0 && r.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, r.End)
			continue
		}
		out = append(out, r)
	}
	return out
}

// findRange gives the range of sorted, disjoint ranges that holds an address.
func findRange(rs []interval.Range, a uint64) (interval.Range, bool) {
	i, _ := slices.BinarySearchFunc(rs, a, func(r interval.Range, a uint64) int {
		if r.End <= a {
			return -1
		}
		return 1
	})
	if i < len(rs) && rs[i].Contains(a) {
		return rs[i], true
	}
	return interval.Range{}, false
}

func inRanges(rs []interval.Range, a uint64) bool {
	_, ok := findRange(rs, a)
	return ok
}

// readBuildID looks for NT_GNU_BUILD_ID in PT_NOTE segments, then in note sections, which
// is all that a debug file may have.
func (f *elfFile) readBuildID() []byte {
	notes := slices.Clone(f.notes)
	for _, s := range f.sects {
		if s.typ == secNote {
			notes = append(notes, interval.Range{Start: s.off, End: s.off + s.size})
		}
	}
	const maxNotes = 256
	for _, n := range notes[:min(len(notes), maxNotes)] {
		if n.End < n.Start {
			continue
		}
		b, err := f.bytesAt(n.Start, min(n.End-n.Start, 1<<16), "note")
		if err != nil {
			continue
		}
		if id := buildIDNote(b); id != nil {
			return id
		}
	}
	return nil
}

// buildIDNote finds the build-id in a run of notes.
func buildIDNote(b []byte) []byte {
	const ntBuildID, maxID = 3, 64
	for c := (&cursor{b: b}); ; {
		namesz, descsz, typ := int(c.u32()), int(c.u32()), c.u32()
		name := c.take(align4(namesz))
		desc := c.take(align4(descsz))
		if c.bad {
			return nil
		}
		if typ == ntBuildID && namesz == 4 && string(name) == "GNU\x00" && descsz > 1 && descsz <= maxID {
			return desc[:descsz]
		}
	}
}

func align4(n int) int { return (n + 3) &^ 3 }
