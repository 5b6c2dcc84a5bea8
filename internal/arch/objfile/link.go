package objfile

// LinkReloc is what a relocation of an object asks of a linker.
type LinkReloc struct {
	Name   string // in elf.h
	Value  LinkValue
	Size   int  // bytes that are written
	Signed bool // they hold a signed number; else an unsigned one
}

// LinkValue says what a relocation writes. S is the symbol's address, A the addend, P the place, G the address of
// the symbol's slot in the GOT.
type LinkValue uint8

// The values of relocations.
const (
	LinkNone     LinkValue = iota
	LinkAddress            // S + A
	LinkRelative           // S + A - P
	LinkCall               // the same, of a symbol that is only called: where it is out of reach a veneer stands for it
	LinkSlot               // G + A - P
)

// Links says whether objects of the processor can be linked: Reloc and Veneer are for those alone.
func (m *Machine) Links() bool { return m.ELF == X86_64 }

// Reloc tells of a relocation's type; not ok: what it asks for is not known.
func (m *Machine) Reloc(kind uint32) (r LinkReloc, ok bool) { return x8664Reloc(kind) }

// Veneer is code that jumps to an address, from wherever it stands.
func (m *Machine) Veneer(to uint64) []byte { return x8664Veneer(to) }
