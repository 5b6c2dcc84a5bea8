package procfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
)

// Perm is what a mapping permits.
type Perm uint8

// The permissions of a mapping.
const (
	PermRead Perm = 1 << iota
	PermWrite
	PermExec
	PermShared // MAP_SHARED
)

func (p Perm) String() string {
	b := []byte("---p")
	for i, c := range []byte("rwxs") {
		if p>>i&1 != 0 {
			b[i] = c
		}
	}
	return string(b)
}

// FileID names a file on this machine: device and inode number as proc(5) maps show them.
type FileID struct {
	Dev   uint64 // major<<32 | minor
	Inode uint64
}

// Map is one mapping, a line of /proc/PID/maps.
type Map struct {
	Start, End uint64 // bytes [Start, End)
	Perm       Perm
	Offset     uint64 // of Start in the file, bytes
	FileID            // zero for anonymous memory
	Path       string // file or "[heap]", "[stack]", "[vdso]" ...; octal escapes undone
	Deleted    bool   // the file has no name any more; Path is the old one
}

// Size is the number of bytes mapped.
func (m Map) Size() uint64 { return m.End - m.Start }

// Contains says whether addr lies in the mapping.
func (m Map) Contains(addr uint64) bool { return m.Start <= addr && addr < m.End }

// Anonymous says whether the mapping has no file.
func (m Map) Anonymous() bool { return m.Inode == 0 }

// maxMaps bounds the lines taken from a maps file; vm.max_map_count cannot exceed it.
const maxMaps = 1 << 24

// tornReads bounds the readings of a text of mappings that is torn.
const tornReads = 20

// ReadMaps parses the text of /proc/PID/maps that read gives. The kernel writes that text in pieces: what is mapped, joined or
// parted between two of them leaves mappings that overlap. Such a text is read again.
func ReadMaps(read func() ([]byte, error)) (maps []Map, err error) {
	for range tornReads {
		text, bad := read()
		if bad != nil {
			return nil, bad
		}
		if maps, err = ParseMaps(text); err == nil {
			return maps, nil
		}
	}
	return nil, err
}

// MapsText reads the text of an open /proc/PID/maps by read. The kernel writes it in pieces, and ends it early if the program's memory goes
// meanwhile, since it ends or executes another program: then there is no text.
func MapsText(f io.ReaderAt, read func() ([]byte, error)) ([]byte, error) {
	text, err := read()
	if n, _ := f.ReadAt(make([]byte, 1), 0); n == 0 {
		return nil, err
	}
	return text, err
}

// MapsOf reads the mappings of a process by its directory in /proc, such as /proc/self.
func MapsOf(dir string) ([]Map, error) {
	return ReadMaps(func() ([]byte, error) {
		f, err := os.Open(dir + "/maps")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return MapsText(f, func() ([]byte, error) { return io.ReadAll(f) })
	})
}

// ParseMaps parses the text of /proc/PID/maps. Names may hold anything but a newline,
// which the kernel writes as \012. Lines must be in order of address, not overlapping.
func ParseMaps(text []byte) ([]Map, error) {
	n := bytes.Count(text, []byte("\n"))
	if n > maxMaps {
		return nil, fmt.Errorf("maps: %d lines, more than the kernel's own limit", n)
	}
	maps := make([]Map, 0, n)
	for line := 1; len(text) > 0; line++ {
		l, rest, _ := bytes.Cut(text, []byte("\n"))
		m, err := parseMap(string(l))
		if err == nil && len(maps) > 0 && m.Start < maps[len(maps)-1].End {
			err = fmt.Errorf("begins below the end of the line before")
		}
		if err != nil {
			return nil, fmt.Errorf("maps line %d %q: %w", line, l, err)
		}
		maps, text = append(maps, m), rest
	}
	return maps, nil
}

// parseMap parses "START-END PERM OFFSET MAJ:MIN INODE   PATH".
func parseMap(l string) (m Map, err error) {
	var f [5]string
	rest := l
	for i := range f {
		f[i], rest, _ = strings.Cut(rest, " ")
	}
	start, end, ok1 := strings.Cut(f[0], "-")
	major, minor, ok2 := strings.Cut(f[3], ":")
	if !ok1 || !ok2 || len(f[1]) != 4 {
		return m, fmt.Errorf("fields missing")
	}
	var maj, minr uint64
	for _, n := range []struct {
		text string
		base int
		to   *uint64
	}{{start, 16, &m.Start}, {end, 16, &m.End}, {f[2], 16, &m.Offset}, {major, 16, &maj}, {minor, 16, &minr}, {f[4], 10, &m.Inode}} {
		if *n.to, err = strconv.ParseUint(n.text, n.base, 64); err != nil {
			return m, err
		}
	}
	if m.Start >= m.End {
		return m, fmt.Errorf("end is not above the start")
	}
	m.Dev = maj<<32 | minr
	m.Perm = parsePerm(f[1])
	m.SetPath(strings.TrimLeft(rest, " "))
	return m, nil
}

func parsePerm(s string) (p Perm) {
	for i, c := range []byte("rwxs") {
		if s[i] == c {
			p |= 1 << i
		}
	}
	return p
}

// SetPath takes the name as it stands in the line. A file whose name really ends in
// " (deleted)" cannot be told from a deleted one by its line; OpenMap finds it by its
// inode either way.
func (m *Map) SetPath(s string) {
	if m.Inode != 0 {
		s, m.Deleted = strings.CutSuffix(s, " (deleted)")
	}
	m.Path = unescape(s)
}

// unescape undoes the \012 that the kernel writes for a newline in a path.
func unescape(s string) string { return strings.ReplaceAll(s, `\012`, "\n") }

// FindMap gives the mapping that addr lies in. Maps are in order of address.
func FindMap(maps []Map, addr uint64) (Map, bool) {
	i := sort.Search(len(maps), func(i int) bool { return maps[i].End > addr })
	if i < len(maps) && maps[i].Contains(addr) {
		return maps[i], true
	}
	return Map{}, false
}

// covered says whether mappings that all satisfy ok cover [addr, addr+size) without a gap.
func Covered(maps []Map, addr, size uint64, ok func(Map) bool) bool {
	for end := addr + size; addr < end; {
		m, found := FindMap(maps, addr)
		if !found || !ok(m) {
			return false
		}
		addr = m.End
	}
	return true
}

// overlaps says whether any mapping has a byte in [addr, addr+size).
func Overlaps(maps []Map, addr, size uint64) bool {
	i := sort.Search(len(maps), func(i int) bool { return maps[i].End > addr })
	return i < len(maps) && maps[i].Start < addr+size
}

// escape makes text from a target fit for a terminal and a line: control bytes, and bytes
// that are no UTF-8, come out as Go escapes.
func Escape(s string) string {
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
