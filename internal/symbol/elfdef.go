package symbol

import "strconv"

// What of the ELF format is read here, with the numbers of the System V gABI and of GNU's extensions. Package debug/elf has
// them too; a program that imports this package does not pay for its parser, decompressors and names.

const elfMagic = "\x7fELF"

// Bytes of e_ident, and the values that are accepted.
const (
	eiClass     = 4
	eiData      = 5
	elfClass64  = 2
	elfData2LSB = 1
)

// fileType is e_type.
type fileType uint16

const (
	typeExec fileType = 2
	typeDyn  fileType = 3
)

// String names the types that a person may give by mistake.
func (t fileType) String() string {
	switch t {
	case 1:
		return "ET_REL"
	case typeExec:
		return "ET_EXEC"
	case typeDyn:
		return "ET_DYN"
	case 4:
		return "ET_CORE"
	}
	return "e_type " + strconv.Itoa(int(t))
}

// Types of segments (p_type) and their flags (p_flags).
const (
	segLoad       = 1
	segDynamic    = 2
	segInterp     = 3
	segNote       = 4
	segGNUEHFrame = 0x6474e550

	segExec  = 1
	segWrite = 2
)

// Types of sections (sh_type), their flags (sh_flags), and how a compressed one is (ch_type).
const (
	secProgbits = 1
	secSymtab   = 2
	secNote     = 7
	secNobits   = 8
	secDynsym   = 11

	secAlloc      = 1 << 1
	secExecinstr  = 1 << 2
	secCompressed = 1 << 11

	compressZlib = 1
)

// Sections of symbols that stand for none (st_shndx), and the number behind which e_shstrndx lies elsewhere.
const (
	indexUndef  = 0
	indexAbs    = 0xfff1
	indexCommon = 0xfff2
	indexXindex = 0xffff
)

// Tags of the dynamic section (d_tag), and the flag of a position-independent program.
const (
	dynNull      = 0
	dynNeeded    = 1
	dynPltRelSz  = 2
	dynHash      = 4
	dynStrtab    = 5
	dynSymtab    = 6
	dynRela      = 7
	dynRelaSz    = 8
	dynStrSz     = 10
	dynSoname    = 14
	dynJmpRel    = 23
	dynGNUHash   = 0x6ffffef5
	dynVersym    = 0x6ffffff0
	dynFlags1    = 0x6ffffffb
	dynVerdef    = 0x6ffffffc
	dynVerdefNum = 0x6ffffffd

	flag1PIE = 0x08000000
)
