package kmod

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// own is the text of a module of the tests'.
func own(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".c"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parsed(t testing.TB, object string) *Object {
	t.Helper()
	f, err := os.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o, err := Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// outside gives names that an object has not addresses from base on, 64 bytes apart.
func outside(o *Object, base uint64) func(string) (uint64, bool) {
	names := o.Undefined()
	return func(name string) (uint64, bool) {
		i := slices.Index(names, name)
		return base + 64*uint64(i), i >= 0
	}
}

var places = [Parts]uint64{Text: 0x40100000, Rodata: 0x40200000, Data: 0x40300000, PerCPU: 0x40400000}

// linked is an object in its place, with names that it has not near it.
func linked(t *testing.T, o *Object, near uint64) (*Layout, *Image) {
	t.Helper()
	l := o.Layout(nil)
	im, err := l.Link(places, outside(o, near))
	if err != nil {
		t.Fatal(err)
	}
	return l, im
}

// models are flags that compilers are given by distributions and by those who build modules.
var models = map[string][]string{
	"cc":           nil,
	"none":         {"-fpie", "-mcmodel=small", "-fstack-protector-strong", "-fcf-protection"},
	"no-pic":       {"-fno-pic", "-mcmodel=small", "-fcommon"},
	"pic":          {"-fPIC", "-mcmodel=small"},
	"large no-pic": {"-fno-pic", "-mcmodel=large"},
}

// TestLinked links modules as ld does, of which it knows nothing: every byte is the same.
func TestLinked(t *testing.T) {
	same := 0
	for model, flags := range models {
		for _, cc := range compilers {
			if model == "large no-pic" && cc == "clang" {
				continue // it has relocations that are refused
			}
			object := compile(t, cc, "all", own(t, "all"), flags...)
			o := parsed(t, object)
			l, im := linked(t, o, 0x40500000)
			if len(l.slots) > 0 {
				continue // ld has a GOT of its own
			}
			same++
			for name, want := range byLd(t, object, o, l, im) {
				i := slices.IndexFunc(o.sections, func(s *section) bool { return s.name == name })
				s := o.sections[i]
				got := im.Bytes[s.part][l.off[s]:][:s.size]
				if s.data == nil {
					want = make([]byte, s.size)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s %s: section %s differs", cc, model, name)
				}
			}
		}
	}
	if same < 5 {
		t.Errorf("%d objects without a GOT", same)
	}
}

// byLd has ld link an object at the same addresses, and gives the sections.
func byLd(t *testing.T, object string, o *Object, l *Layout, im *Image) map[string][]byte {
	t.Helper()
	plain, out := filepath.Join(t.TempDir(), "plain.o"), filepath.Join(t.TempDir(), "linked")
	args := []string{}
	var script strings.Builder
	script.WriteString("SECTIONS {\n")
	for i, s := range o.sections {
		in := s.name
		if in != "COMMON" {
			args = append(args, "--set-section-flags", in+"=alloc,contents,load,data") // or ld would merge strings
		}
		if s.data == nil {
			args = args[:len(args)-2]
		}
		fmt.Fprintf(&script, ".kp%d %#x : SUBALIGN(1) { *(%s) }\n", i, im.At[s.part]+l.off[s], in)
	}
	script.WriteString("/DISCARD/ : { *(*) }\n}\n")
	tool := func(name string, args ...string) {
		t.Helper()
		if b, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, b)
		}
	}
	tool("objcopy", append(args, object, plain)...)
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args = []string{"-static", "--no-relax", "-T", file, "-o", out, "-e", "init_module"}
	find := outside(o, 0x40500000)
	for _, name := range o.Undefined() {
		addr, _ := find(name)
		args = append(args, fmt.Sprintf("--defsym=%s=%#x", name, addr))
	}
	tool("ld", append(args, plain)...)
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]byte{}
	for i, s := range o.sections {
		sec := f.Section(fmt.Sprintf(".kp%d", i))
		if sec == nil {
			t.Fatalf("ld has left out %s", s.name)
		}
		if sec.Addr != im.At[s.part]+l.off[s] {
			t.Fatalf("ld has %s at %#x", s.name, sec.Addr)
		}
		if all[s.name], err = sec.Data(); err != nil && sec.Type != elf.SHT_NOBITS {
			t.Fatal(err)
		}
	}
	return all
}

// What is far away is called by way of a veneer, and found by way of a slot.
// isValue says whether a name of the runtime is no function.
func isValue(name string) bool {
	return strings.HasPrefix(name, "__kp_heap") || name == "__kp_percpu_stride" || name == "__kp_cpus"
}

func TestFar(t *testing.T) {
	const far = 0x7f0000000000
	for model, flags := range models {
		for _, cc := range compilers {
			if model == "large no-pic" && cc == "clang" {
				continue
			}
			o := parsed(t, compile(t, cc, "all", own(t, "all"), flags...))
			l := o.Layout(nil)
			find := outside(o, far)
			im, err := l.Link(places, func(name string) (uint64, bool) {
				if isValue(name) {
					return 0x1000, true // what is no function lies below 2 GB
				}
				return find(name)
			})
			if err != nil {
				t.Errorf("%s %s: %v", cc, model, err)
				continue
			}
			calls := 0
			for _, r := range o.relocs {
				if o.symbols[r.symbol].defined || r.Size != 4 || isValue(o.symbols[r.symbol].name) {
					continue
				}
				calls++
				want, _ := find(o.symbols[r.symbol].name)
				off := l.off[r.in] + r.off
				to := im.At[r.in.part] + off + uint64(int64(int32(binary.LittleEndian.Uint32(im.Bytes[r.in.part][off:])))-r.addend)
				var got uint64
				switch {
				case r.Value == objfile.LinkSlot:
					got = binary.LittleEndian.Uint64(im.Bytes[Rodata][to-im.At[Rodata]:])
				case to >= im.At[Text] && to < im.At[Text]+l.Size[Text]:
					v := im.Bytes[Text][to-im.At[Text]:]
					if !bytes.HasPrefix(v, []byte{0xff, 0x25, 0, 0, 0, 0}) { // jmp *0(%rip)
						t.Errorf("%s %s: a call of %s goes to % x", cc, model, o.symbols[r.symbol].name, v[:6])
					}
					got = binary.LittleEndian.Uint64(v[6:])
				}
				if got != want {
					t.Errorf("%s %s: %s of %s leads to %#x, not %#x", cc, model, r.Name, o.symbols[r.symbol].name, got, want)
				}
			}
			if calls == 0 && model != "large no-pic" {
				t.Errorf("%s %s: no calls", cc, model)
			}
		}
	}
}

// A module's own names have addresses, and what it tells of itself is there.
func TestObject(t *testing.T) {
	o := parsed(t, compile(t, "gcc", "all", own(t, "all")))
	_, im := linked(t, o, 0x40500000)
	for _, name := range []string{"init_module", "cleanup_module"} {
		if at, ok := im.Symbol(name); !ok || at < places[Text] || at >= places[Text]+uint64(len(im.Bytes[Text])) {
			t.Errorf("%s is at %#x", name, at)
		}
	}
	if _, ok := im.Symbol("pre"); ok {
		t.Error("a static function is seen by others")
	}
	for tag, want := range map[string]string{
		TagLicense: "GPL", TagDescription: "all of it", TagParam: "symbol:the function",
		TagParamType: "counts:array of uint limit:int name:charp noisy:bool symbol:string",
	} {
		all := o.Tagged(tag)
		slices.Sort(all)
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%s: %q, want %q", tag, got, want)
		}
	}
	want := []string{
		"__kp_copy", "__kp_copy_string", "__kp_cpus", "__kp_current", "__kp_heap", "__kp_heap_end", "__kp_nanoseconds", "__kp_percpu_stride", "__kp_record", "__kp_request", "__kp_slot",
		"jprobe_return",
	}
	if got := o.Undefined(); !slices.Equal(got, want) {
		t.Errorf("it needs %q", got)
	}
}

// What can not be a module is refused, with the reason.
func TestObjectRefused(t *testing.T) {
	for text, why := range map[string]string{
		"int x;": "include <linux/module.h>",
		"#include <linux/module.h>\n__thread int x; int f(void) { return x; }":                                                     "DEFINE_PER_CPU",
		"#include <linux/module.h>\nint n; __attribute__((constructor)) void f(void) { n = 1; }":                                   "before module_init",
		"const char a[] __attribute__((section(\".modinfo\"), used)) = \"license=GPL\";":                                           "headers of a kernel",
		"const char a[] __attribute__((section(\".modinfo\"), used)) = \"kpabi=99\";":                                              "version 99",
		"#include <linux/module.h>\nvoid *g(void) { return 0; } void f(void) __attribute__((ifunc(\"g\"))); void h(void) { f(); }": "ifunc",
	} {
		f, err := os.Open(compile(t, "gcc", "bad", text, "-fno-builtin"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(f); !errors.Is(err, ErrObject) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
		f.Close()
	}
	for text, why := range map[string]string{
		"asm(\".section .modinfo,\\\"a\\\"\\nmine: .byte 0\\n.data\\n.quad mine\\n\");": "not loaded",
		"int a[1 << 23], b[1 << 23], c[1 << 23];":                                       "more than",
	} {
		f, err := os.Open(compile(t, "gcc", "bad", "#include <linux/module.h>\n"+text, "-fcommon"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(f); !errors.Is(err, ErrObject) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
		f.Close()
	}
	for _, flags := range [][]string{{"-fno-pic", "-mcmodel=small"}, {"-fpie", "-mcmodel=small"}} {
		far := parsed(t, compile(t, "gcc", "far", "#include <linux/module.h>\nextern __attribute__((visibility(\"hidden\"))) int counter; int f(void) { return counter; }", flags...))
		_, err := far.Layout(nil).Link(places, func(string) (uint64, bool) { return 0x7f0000000000, true })
		if !errors.Is(err, ErrObject) || !strings.Contains(err.Error(), "does not reach") {
			t.Errorf("%v: data far away: %v", flags, err)
		}
	}
	weak := parsed(t, compile(t, "gcc", "weak", "#include <linux/module.h>\nextern int none __attribute__((weak)); struct nothing {} x; void *p[] = {&none, &x};", "-Wno-pedantic"))
	im, err := weak.Layout(nil).Link(places, func(name string) (uint64, bool) { return 0x40500000, strings.HasPrefix(name, "__kp_") })
	if err != nil {
		t.Fatal(err)
	}
	if b := value(t, im, "p", 16); binary.LittleEndian.Uint64(b) != 0 || binary.LittleEndian.Uint64(b[8:]) < places[Data] {
		t.Errorf("a weak name that is not there, and a variable of no bytes: % x", b)
	}
	f, err := os.Open(compile(t, "clang", "all", own(t, "all"), "-fPIC", "-mcmodel=large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Parse(f); !errors.Is(err, ErrObject) || !strings.Contains(err.Error(), "-mcmodel=kernel") {
		t.Errorf("clang -fPIC -mcmodel=large: %v", err)
	}
	o := parsed(t, compile(t, "gcc", "all", own(t, "all")))
	_, err = o.Layout(nil).Link(places, func(string) (uint64, bool) { return 0, false })
	if !errors.Is(err, ErrObject) || !strings.Contains(err.Error(), "unknown symbol __kp_") {
		t.Errorf("nothing is known: %v", err)
	}
}
