package amd64

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os/exec"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"
)

// image is an ELF file as a loader would map it at its own addresses, with relative
// relocations applied.
type image struct {
	path  string
	segs  []Part
	funcs []imageFunc          // by address, without doubles
	cold  map[string]imageFunc // NAME.cold by NAME
}

type imageFunc struct {
	name      string
	addr, end uint64
}

func openImage(t testing.TB, path string) *image {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	im := &image{path: path}
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		data := make([]byte, p.Memsz)
		if _, err := p.ReadAt(data[:p.Filesz], 0); err != nil {
			t.Fatal(err)
		}
		im.segs = append(im.segs, Part{p.Vaddr, data})
	}
	im.relocate(f)
	im.addSymbols(f)
	if f.Section(".gopclntab") == nil {
		im.addFrames(t, f)
	}
	im.addGo(t, f)
	im.tidy()
	return im
}

// bytes gives the memory from addr on, at most n bytes.
func (im *image) bytes(addr, n uint64) []byte {
	for _, s := range im.segs {
		if off := addr - s.Addr; off < uint64(len(s.Code)) {
			return s.Code[off:min(off+n, uint64(len(s.Code)))]
		}
	}
	return nil
}

func (im *image) mem(addr uint64, buf []byte) error {
	b := im.bytes(addr, uint64(len(buf)))
	if len(b) < len(buf) {
		return errors.New("not mapped")
	}
	copy(buf, b)
	return nil
}

func (im *image) relocate(f *elf.File) {
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA {
			continue
		}
		data, err := s.Data()
		if err != nil {
			continue
		}
		for ; len(data) >= 24; data = data[24:] {
			typ := elf.R_X86_64(binary.LittleEndian.Uint32(data[8:]))
			at := binary.LittleEndian.Uint64(data)
			if b := im.bytes(at, 8); typ == elf.R_X86_64_RELATIVE && len(b) == 8 {
				copy(b, data[16:24])
			}
		}
	}
}

func (im *image) addSymbols(f *elf.File) {
	syms, _ := f.Symbols()
	dyn, _ := f.DynamicSymbols()
	for _, s := range append(syms, dyn...) {
		typ := elf.ST_TYPE(s.Info)
		if (typ == elf.STT_FUNC || typ == elf.STT_GNU_IFUNC) && s.Size > 0 && s.Section != elf.SHN_UNDEF {
			im.funcs = append(im.funcs, imageFunc{s.Name, s.Value, s.Value + s.Size})
		}
	}
}

// addFrames takes the ranges of .eh_frame's descriptions (LSB 5.0 core, section 10.6.1)
// with the encoding that gcc and clang use: 4 bytes, signed, relative to the field.
func (im *image) addFrames(t testing.TB, f *elf.File) {
	s := f.Section(".eh_frame")
	if s == nil {
		return
	}
	data, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off+16 <= len(data); {
		n := int(binary.LittleEndian.Uint32(data[off:]))
		if n == 0 || off+4+n > len(data) {
			return
		}
		if binary.LittleEndian.Uint32(data[off+4:]) != 0 {
			at := s.Addr + uint64(off) + 8
			start := at + uint64(int64(int32(binary.LittleEndian.Uint32(data[off+8:]))))
			im.funcs = append(im.funcs, imageFunc{"fde", start, start + uint64(binary.LittleEndian.Uint32(data[off+12:]))})
		}
		off += 4 + n
	}
}

func (im *image) addGo(t testing.TB, f *elf.File) {
	s, text := f.Section(".gopclntab"), f.Section(".text")
	if s == nil {
		return
	}
	data, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	tab, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range tab.Funcs {
		im.funcs = append(im.funcs, imageFunc{fn.Name, fn.Entry, fn.End})
	}
}

func (im *image) tidy() {
	im.funcs = slices.DeleteFunc(im.funcs, func(f imageFunc) bool {
		return f.end <= f.addr || uint64(len(im.bytes(f.addr, f.end-f.addr))) != f.end-f.addr
	})
	sort.SliceStable(im.funcs, func(i, j int) bool { return im.funcs[i].addr < im.funcs[j].addr })
	im.funcs = slices.CompactFunc(im.funcs, func(a, b imageFunc) bool { return a.addr == b.addr })
	im.cold = map[string]imageFunc{}
	for _, f := range im.funcs {
		if hot, ok := strings.CutSuffix(f.name, ".cold"); ok {
			im.cold[hot] = f
		}
	}
}

// at gives the function that holds addr.
func (im *image) at(addr uint64) (imageFunc, bool) {
	i := sort.Search(len(im.funcs), func(i int) bool { return im.funcs[i].addr > addr }) - 1
	if i < 0 || addr >= im.funcs[i].end {
		return imageFunc{}, false
	}
	return im.funcs[i], true
}

func (im *image) inside(addr uint64) (uint64, bool) {
	f, ok := im.at(addr)
	return f.addr, ok
}

// find gives the function of that name.
func (im *image) find(t testing.TB, name string) imageFunc {
	t.Helper()
	for _, f := range im.funcs {
		if f.name == name {
			return f
		}
	}
	t.Fatalf("%s has no function %s", im.path, name)
	return imageFunc{}
}

// fn makes the input of an analysis, with NAME.cold as a part if there is one.
func (im *image) fn(f imageFunc, isGo bool) *Func {
	in := &Func{
		Name: f.name, Addr: f.addr, Code: im.bytes(f.addr, f.end-f.addr),
		Go: isGo, Mem: im.mem, Inside: im.inside,
	}
	if c, ok := im.cold[f.name]; ok {
		in.Parts = []Part{{c.addr, im.bytes(c.addr, c.end-c.addr)}}
	}
	return in
}

// analyse is Analyse for a function of the image that must be analysed.
func (im *image) analyse(t testing.TB, f imageFunc, isGo bool) *Flow {
	t.Helper()
	fl, err := Analyse(im.fn(f, isGo))
	if err != nil {
		t.Fatalf("%s: %v", f.name, err)
	}
	return fl
}

// toolPath finds a tool that a test needs.
func toolPath(t testing.TB, tool string) string {
	t.Helper()
	p, err := exec.LookPath(tool)
	if err != nil {
		t.Fatalf("%s is needed: apt-get install %s", tool, tool)
	}
	return p
}

// run runs a tool.
func runTool(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(toolPath(t, name), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	return out
}

// hashOf names what a program is built from.
func hashOf(src []byte, flags []string) string {
	sum := sha256.Sum256(append(slices.Clone(src), strings.Join(append(flags, runtime.Version()), " ")...))
	return hex.EncodeToString(sum[:8])
}
