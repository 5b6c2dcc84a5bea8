// Package debuginfo tells what the debug information of a file (DWARF 2 to 5) says of its functions: their parameters, where these
// are when the function is entered, what their types are made of, and which lines of the source their code comes from. It reads files that may be hostile: the work of each call
// is bounded.
package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"slices"
	"sync"
)

var (
	// ErrNone says that a file has no debug information, or none of what is asked for.
	ErrNone = errors.New("no debug information")
	// ErrLimit says that debug information is larger, or deeper, than what is read.
	ErrLimit = errors.New("more debug information than is read")
)

// Limits of what one call reads.
const (
	maxEntries = 20 << 20 // entries
	maxAbbrev  = 64 << 20 // bytes of .debug_abbrev
	maxFuncs   = 4 << 20  // functions in all units that were searched
	maxParams  = 1 << 12
	maxFields  = 1 << 14
	maxPeel    = 32 // typedefs and qualifiers around a type
	maxOrigins = 8  // entries that refer to one another for a name
	maxUnits   = 1 << 18
	maxAttrs   = 1 << 10 // attributes of an entry
)

// File is the debug information of a file. It is safe for concurrent use.
type File struct {
	data *dwarf.Data
	sect sections

	mu    sync.Mutex // held while entries are read: debug/dwarf writes down what it learns of units
	units []unit
	known int    // functions in the units' maps
	spans []span // code of units, by address; those of one address in the order of their units
	index bool   // spans has been made
	// Line tables by where they are, and the rows, files and directories of all.
	lines    map[int64]linesRead
	lineRows int
	goTypes  map[string]GoType                  // those that were asked for, by their names
	abbrevs  map[uint64]map[uint64]abbreviation // by where they are
	inlines  map[dwarf.Offset][]dwarf.Offset    // inlined calls, by the entries of their functions; nil: not looked for yet
}

// sections are those that are read here.
type sections struct {
	info, abbrev, addr  []byte
	lineStr, str        []byte
	loc, loclists, line *late
}

// late is a section that is read when it is asked for: a file's sections may be compressed, and most of what is asked of it needs few.
type late struct {
	read func() ([]byte, error)
}

func newLate(section func(name string) ([]byte, error), name string) *late {
	return &late{sync.OnceValues(func() ([]byte, error) { return section(name) })}
}

// at gives a cursor at an offset; refused is the error for one that lies outside.
func (l *late) at(off int64, refused error) (cursor, error) {
	b, err := l.read()
	if err == nil && (off < 0 || off > int64(len(b))) {
		err = refused
	}
	return cursor{b: b, pos: int(off)}, err
}

// unit is a compilation unit.
type unit struct {
	start    dwarf.Offset
	first    dwarf.Offset // of its first entry
	end      dwarf.Offset
	version  int
	wide     bool // 64-bit DWARF
	addrSize int
	abbrev   uint64 // where its abbreviations are
	root     *dwarf.Entry
	funcs    map[uint64]dwarf.Offset // functions by their address; nil before it was searched
	code     []funcCode              // theirs, by address, likewise
}

// funcCode is code of a function.
type funcCode struct {
	start, end uint64
	off        dwarf.Offset // of its entry
}

// span is code of a unit.
type span struct {
	start, end uint64
	unit       int
}

// New reads what a file has. section gives a section's bytes by its name, nil for one that is not there; it is called later too, for sections
// that are not needed at once. Errors: ErrNone, ErrLimit,
// those of section, and what is wrong with the first entries.
func New(section func(name string) ([]byte, error)) (*File, error) {
	var err error
	read := func(name string) []byte {
		b, e := section(name)
		if e != nil && err == nil {
			err = e
		}
		return b
	}
	info, abbrev := read(".debug_info"), read(".debug_abbrev")
	ranges, str := read(".debug_ranges"), read(".debug_str")
	f := &File{sect: sections{
		info: info, abbrev: abbrev, addr: read(".debug_addr"), str: str,
		loc: newLate(section, ".debug_loc"), loclists: newLate(section, ".debug_loclists"), line: newLate(section, ".debug_line"),
	}}
	more := map[string][]byte{".debug_addr": f.sect.addr}
	for _, name := range []string{".debug_line_str", ".debug_str_offsets", ".debug_rnglists"} {
		more[name] = read(name)
	}
	f.sect.lineStr = more[".debug_line_str"]
	switch {
	case err != nil:
		return nil, err
	case len(info) == 0:
		return nil, ErrNone
	case len(abbrev) > maxAbbrev:
		return nil, fmt.Errorf(".debug_abbrev of %d bytes: %w", len(abbrev), ErrLimit)
	}
	units, tables := unitsOf(info)
	if err := checkTables(abbrev, tables); err != nil {
		return nil, err
	}
	f.units = units
	str = padded(str, len(more[".debug_str_offsets"]))
	if f.data, err = dwarf.New(abbrev, nil, nil, info, nil, nil, ranges, str); err != nil {
		return nil, err
	}
	for name, b := range more {
		if b != nil {
			if err := f.data.AddSection(name, b); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// padded makes the section of strings longer than that of their offsets. Go's package debug/dwarf, up to 1.26 at least, takes the
// length in front of a unit's offsets for the first of them before it knows where they begin, and gives up the unit where no
// string is there: in small files.
func padded(str []byte, offsets int) []byte {
	if offsets == 0 || len(str) > offsets {
		return str
	}
	out := make([]byte, offsets+1)
	copy(out, str)
	return out
}

// unitAt gives the unit that an entry belongs to.
func (f *File) unitAt(off dwarf.Offset) *unit {
	i, ok := slices.BinarySearchFunc(f.units, off, func(u unit, off dwarf.Offset) int {
		switch {
		case u.end <= off:
			return -1
		case u.first > off:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return &f.units[i]
}
