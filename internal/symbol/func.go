package symbol

import "fmt"

// Lang is the language a function was written in, as far as its name tells it. It
// decides the ABI of arguments: Go's ABIInternal for LangGo, the SysV ABI else.
type Lang uint8

// Languages.
const (
	LangC    Lang = iota // C, assembly, or unknown
	LangCPP              // Itanium-mangled name
	LangRust             // legacy or v0 mangled name
	LangGo               // in a pclntab, with a file and lines there
)

// String gives the language's usual name.
func (l Lang) String() string {
	names := [...]string{"C", "C++", "Rust", "Go"}
	if int(l) < len(names) {
		return names[l]
	}
	return fmt.Sprintf("lang %d", uint8(l))
}

// Source is the table that a name or a size comes from.
type Source uint8

// Sources.
const (
	SourceNone      Source = iota
	SourceSymtab           // .symtab of the file itself
	SourceDynsym           // .dynsym, or DT_SYMTAB where section headers are missing
	SourceDebugFile        // .symtab of a separate debug file
	SourceDebugData        // .symtab in .gnu_debugdata
	SourcePclntab          // Go's pclntab
	SourceEHFrame          // an FDE of .eh_frame: bounds, no name
	SourcePLT              // a PLT stub, named after the symbol it jumps to
	SourceNext             // size only: up to the next function or the end of the code range
)

// String names the table.
func (s Source) String() string {
	names := [...]string{"none", ".symtab", ".dynsym", "debug file", ".gnu_debugdata", "pclntab", ".eh_frame", "plt", "next function"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("source %d", uint8(s))
}

// Func is one function of an Image. All names at one address are one Func.
type Func struct {
	Name     string   // the best raw name; "" for a function known by its bounds only
	Aliases  []string // other raw names at the address, hidden versions as name@VERSION
	Addr     uint64   // link-time address
	Size     uint64   // bytes; at least 1
	File     string   // source file of a file-local function, where the table tells it
	PartOf   string   // Cold, Part: raw name of the function it was split from, "" if unknown
	Lang     Lang
	Source   Source // of Name (SourceEHFrame if there is none)
	SizeFrom Source // of Size
	Local    bool   // every name is file-local
	IFunc    bool   // the address is a resolver's: the implementation is what it returns
	PLT      bool   // a stub in the PLT
	Cold     bool   // the cold part of another function, entered by a jump: no function of its own
	Part     bool   // split off (.part.N): a function with its own frame, but not the one of that name
	Wrapper  bool   // Go: generated (an ABI wrapper, a method wrapper)
	ABI0     bool   // Go: known to take its arguments on the stack (ABI0)
	Asm      bool   // Go: written in assembly; may be ABI0 or ABIInternal
}

// End is the link-time address after the function's last byte.
func (f *Func) End() uint64 { return f.Addr + f.Size }

// Contains reports whether a link-time address is one of the function's bytes.
func (f *Func) Contains(vaddr uint64) bool { return vaddr-f.Addr < f.Size }

// Candidate reports whether the function may answer to a name: it is no part of another
// function.
func (f *Func) Candidate() bool { return !f.Cold && !f.Part }

// Pretty is the name as people write it: demangled, without parameter list; the address
// in hex where there is no name.
func (f *Func) Pretty() string {
	if f.Name == "" {
		return fmt.Sprintf("0x%x", f.Addr)
	}
	if f.Lang == LangCPP || f.Lang == LangRust {
		return Demangle(f.Name)
	}
	return f.Name
}

// String gives the raw name, or the address in hex where there is none.
func (f *Func) String() string {
	if f.Name == "" {
		return fmt.Sprintf("0x%x", f.Addr)
	}
	return f.Name
}

// Sym is a symbol of any kind: what @SYM means.
type Sym struct {
	Name   string
	Addr   uint64 // link-time address
	Size   uint64 // bytes, 0 if the table does not tell
	File   string // source file of a file-local symbol, where the table tells it
	IsFunc bool
}

// Segment is a loadable segment (PT_LOAD).
type Segment struct {
	Vaddr, Memsz uint64 // link-time address and bytes in memory
	Off, Filesz  uint64 // file offset and bytes in the file
	Exec, Write  bool
}

// Contains reports whether a link-time address lies in the segment.
func (s Segment) Contains(vaddr uint64) bool { return vaddr-s.Vaddr < s.Memsz }

// Type is the kind of file.
type Type uint8

// Types.
const (
	TypeExec Type = iota // ET_EXEC: loaded where it was linked, bias 0
	TypeDyn              // ET_DYN: a shared object or a position-independent program
)

// IRelative is an IRELATIVE relocation: the loader calls Resolver and stores what it
// returns at Slot. Both are link-time addresses.
type IRelative struct{ Slot, Resolver uint64 }
