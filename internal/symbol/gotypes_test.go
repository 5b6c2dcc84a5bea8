package symbol

import (
	"bytes"
	"compress/zlib"
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// words writes a signature: "(s *main.Server ptr 8) (~r0 int int 8)".
func (s *Signature) words() string {
	list := func(ps []Param) string {
		var w []string
		for _, p := range ps {
			w = append(w, fmt.Sprintf("%s %s %v %d", p.Name, p.Type, p.Kind, p.Size))
		}
		return "(" + strings.Join(w, ", ") + ")"
	}
	return list(s.Params) + " " + list(s.Results)
}

// goSignatures are those of functions of goSource, and the sizes of their frames.
var goSignatures = map[string]struct {
	words string
	frame int
}{
	"main.(*Server).Handle": {"(s *main.Server ptr 8, x int int 8) (~r0 int int 8)", 16},
	"main.Square.Area":      {"(q main.Square int 8) (~r0 int int 8)", 8},
	"main.apply":            {"(f func(int) int func 8) (~r0 int int 8)", 8},
	"main.probe.func1":      {"(y int int 8) (~r0 int int 8)", 8},
	"main.main":             {"() ()", 0},
	"os.ReadFile":           {"(name string string 16) (~r0 []uint8 slice 24, ~r1 error interface 16)", 16},
}

func TestGoSignature(t *testing.T) {
	for form := range goBuilds {
		im := open(t, buildGoForm(t, form), noDebug)
		stripped := strings.HasSuffix(form, "sw") || form == "ext_pie"
		for name, want := range goSignatures {
			sig, err := im.GoSignature(one(t, im, name))
			if err != nil || sig.Problem != nil || sig.Typed == stripped || sig.Frame != want.frame {
				t.Errorf("%s: %s: %+v, %v", form, name, sig, err)
				continue
			}
			if !stripped && sig.words() != want.words {
				t.Errorf("%s: %s: %s, want %s", form, name, sig.words(), want.words)
			}
		}
	}
}

// TestGoSignatureFrames compares the parameters of all functions of a program with the
// sizes of their frames, where these are no more than the sum of whole words: in the order
// of arguments on the stack and in the spill area nothing is padded then.
func TestGoSignatureFrames(t *testing.T) {
	im := open(t, buildGoForm(t, "plain"), noDebug)
	n := 0
	for _, fn := range im.Funcs() {
		sig, err := im.GoSignature(fn)
		if err != nil || !sig.Typed || fn.ABI0 || fn.Asm || len(sig.Results) > 3 {
			continue
		}
		sum, words := int64(0), true
		for _, p := range sig.Params {
			sum, words = sum+p.Size, words && p.Size%8 == 0
		}
		for _, r := range sig.Results {
			words = words && r.Kind != reflect.Struct && r.Kind != reflect.Array
		}
		if words {
			n++
			if sum != int64(sig.Frame) {
				t.Errorf("%v: %s: %d bytes, the frame has %d", fn, sig.words(), sum, sig.Frame)
			}
		}
	}
	if n < 1000 {
		t.Errorf("%d functions compared", n)
	}
}

// TestGoSignatureVersions reads DWARF 4, and sections that are not compressed.
func TestGoSignatureVersions(t *testing.T) {
	t.Setenv("GOEXPERIMENT", "nodwarf5")
	for name, flags := range map[string][]string{"compressed": nil, "plain": {"-ldflags=-compressdwarf=false"}} {
		dir := t.TempDir()
		buildGo(t, dir, pureGo, filepath.Join(dir, "prog"), flags)
		im := open(t, filepath.Join(dir, "prog"), noDebug)
		b, err := im.elf.debugSection(im.elf.section(".debug_info"))
		if err != nil || len(b) < 6 || binary.LittleEndian.Uint16(b[4:]) != 4 {
			t.Fatalf("%s: not DWARF 4: %v", name, err)
		}
		sig, err := im.GoSignature(one(t, im, "main.(*Server).Handle"))
		if err != nil || sig.words() != goSignatures["main.(*Server).Handle"].words {
			t.Errorf("%s: %+v, %v", name, sig, err)
		}
	}
}

// TestGoSignatureDebugFile finds the types in a separate debug file.
func TestGoSignatureDebugFile(t *testing.T) {
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog")
	buildGo(t, dir, pureGo, prog, nil)
	run(t, "objcopy", "--only-keep-debug", prog, prog+".debug")
	run(t, "objcopy", "--strip-all", "--add-gnu-debuglink="+prog+".debug", prog)
	for _, alone := range []bool{false, true} {
		im := open(t, prog, &Options{DebugDirs: []string{}, NoDebugFiles: alone})
		sig, err := im.GoSignature(one(t, im, "main.apply"))
		if err != nil || sig.Typed == alone || sig.Frame != 8 {
			t.Errorf("without debug files %v: %+v, %v", alone, sig, err)
		}
	}
}

func TestGoSignatureRefused(t *testing.T) {
	im := open(t, buildGoForm(t, "external"), noDebug)
	sw := open(t, buildGoForm(t, "sw"), noDebug)
	for _, c := range []struct {
		im   *Image
		glob string
		want string
	}{{im, "main.Sum*", "generic"}, {sw, "main.Sum*", "generic"}, {im, "_cgo_*_Cfunc_twice", "no Go function"}} {
		fns := c.im.Glob(c.glob)
		if len(fns) == 0 {
			t.Errorf("%s: not found", c.glob)
		}
		for _, fn := range fns {
			if _, err := c.im.GoSignature(fn); !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %q", fn, err, c.want)
			}
		}
	}
	if sig, err := im.GoSignature(one(t, im, "runtime.memmove")); err != nil || sig.Frame >= 0 {
		t.Errorf("an assembly function: %+v, %v", sig, err)
	}
}

func TestPackageOf(t *testing.T) {
	for name, want := range map[string]string{
		"main.main": "main", "a.b/c%2ed.(*T).M": "a.b/c.d", "a/b.F[a.b/c.T]": "a/b", "a/b.(*T).M.func1": "a/b",
		"a/b.glob..func1": "a/b", "_start": "", "": "", "a%zz.f": "a%zz",
	} {
		if got := packageOf(name); got != want {
			t.Errorf("packageOf(%q) = %q, want %q", name, got, want)
		}
	}
}

// TestGoSignatureHostile spoils debug information at random: an answer or an error comes,
// and nothing else.
func TestGoSignatureHostile(t *testing.T) {
	whole := open(t, build(t, "go", pureGo, "-ldflags=-compressdwarf=false"), noDebug)
	b, err := os.ReadFile(whole.Path())
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	other := 0
	for round := range 60 {
		bad := bytes.Clone(b)
		for _, name := range []string{".debug_abbrev", ".debug_info", ".debug_str", ".debug_addr", ".debug_str_offsets", ".debug_line_str"} {
			if s := whole.elf.section(name); s != nil && s.size > 0 {
				for range 1 + round*int(s.size)/10000 {
					bad[s.off+rnd.Uint64N(s.size)] = byte(rnd.Uint32())
				}
			}
		}
		im, err := Open(bytes.NewReader(bad), int64(len(bad)), "bad", noDebug)
		if err != nil {
			t.Fatal(err)
		}
		sig, err := im.GoSignature(one(t, im, "main.(*Server).Handle"))
		if err != nil && !errors.Is(err, syscall.EOPNOTSUPP) || err == nil && sig.Frame != 16 {
			t.Errorf("round %d: %+v, %v", round, sig, err)
		}
		if err == nil && sig.Problem != nil {
			other++
			if sig.Typed || sig.Params != nil {
				t.Errorf("round %d: %+v has a problem and types", round, sig)
			}
		}
	}
	if other == 0 {
		t.Error("no damage was noticed")
	}
}

// tinyDWARF is debug information of one function main.f at 0x1000 with one parameter, whose
// type is at typ; a typedef of itself stands at selfAt, and a base type at intAt.
func tinyDWARF(t *testing.T, typ uint32) *goDWARF {
	abbrev := []byte{
		1, 0x11, 1, 0x03, 0x08, 0, 0, // compile unit: name
		2, 0x2e, 1, 0x11, 0x01, 0, 0, // subprogram: low_pc
		3, 0x05, 0, 0x03, 0x08, 0x49, 0x13, 0, 0, // parameter: name, type
		4, 0x16, 0, 0x03, 0x08, 0x49, 0x13, 0, 0, // typedef: name, type
		5, 0x24, 0, 0x03, 0x08, 0x0b, 0x0b, 0x80, 0x52, 0x0b, 0, 0, // base type: name, size, kind
		0,
	}
	u32 := binary.LittleEndian.AppendUint32
	info := append(u32([]byte{0, 0, 0, 0, 4, 0}, 0), 8)
	info = append(info, 1, 'm', 'a', 'i', 'n', 0)
	info = u32(append(info, 4, 's', 0), selfAt)
	info = append(info, 5, 'i', 'n', 't', 0, 8, 2)
	info = binary.LittleEndian.AppendUint64(append(info, 2), 0x1000)
	info = u32(append(info, 3, 'a', 0), typ)
	info = append(info, 0, 0)
	binary.LittleEndian.PutUint32(info, uint32(len(info)-4))
	d, err := dwarf.New(abbrev, nil, nil, info, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &goDWARF{data: d, units: unitsOf(d, info)}
}

const selfAt, intAt = 17, 24

func TestTinyDWARF(t *testing.T) {
	fn := &Func{Name: "main.f", Addr: 0x1000, Lang: LangGo}
	for typ, want := range map[uint32]string{intAt: "", selfAt: "typedef", 1: "parameter", 1 << 20: "parameter"} {
		var sig Signature
		err := tinyDWARF(t, typ).signature(fn, &sig)
		switch {
		case want != "":
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("type at %d: %v, want %q", typ, err, want)
			}
		case err != nil || !reflect.DeepEqual(sig.Params, []Param{{"a", "int", reflect.Int, 8}}):
			t.Errorf("type at %d: %+v, %v", typ, sig, err)
		}
	}
	dw := tinyDWARF(t, intAt)
	if _, _, err := dw.find(&dwarfWalk{data: dw.data, left: 4}, fn); !errors.Is(err, ErrLimit) {
		t.Errorf("%v, want the limit of attributes", err)
	}
	dw.known = maxFuncs
	if _, _, err := dw.find(&dwarfWalk{data: dw.data, left: maxAttrs}, fn); !errors.Is(err, ErrLimit) {
		t.Errorf("%v, want the limit of functions", err)
	}
}

// TestDebugSection reads compressed sections that lie about their size.
func TestDebugSection(t *testing.T) {
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write(make([]byte, 100))
	w.Close()
	for _, c := range []struct {
		typ  uint32
		size uint64
		want string
	}{{1, 100, ""}, {1, 101, "EOF"}, {1, 1 << 60, "MaxSize"}, {2, 100, "zlib"}} {
		b := binary.LittleEndian.AppendUint32(nil, c.typ)
		b = binary.LittleEndian.AppendUint64(append(b, 0, 0, 0, 0), c.size)
		b = append(append(b, make([]byte, 8)...), z.Bytes()...)
		f := &elfFile{r: bytes.NewReader(b), size: uint64(len(b)), limit: 1 << 20}
		got, err := f.debugSection(&section{name: ".debug_info", flags: 0x800, size: f.size})
		if c.want == "" && (err != nil || len(got) != 100) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("type %d, %d bytes: %d bytes, %v, want %q", c.typ, c.size, len(got), err, c.want)
		}
	}
}
