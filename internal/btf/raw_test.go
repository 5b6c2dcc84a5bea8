package btf

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/fetch"
)

// TestSplit reads the types of a module, which refer to the kernel's.
func TestSplit(t *testing.T) {
	k := &raw{}
	k.add("long", kindInt, 0, 8, 1<<24|64)                           // 1
	k.add("", kindPointer, 0, 3)                                     // 2
	k.add("node", kindStruct, 2, 16, k.name("next"), 2, 0, 1, 1, 64) // 3; a name at 1 is long
	k.add("own", kindFunc, 0, 3)                                     // 4
	m := &raw{before: uint32(len(k.strings))}
	m.add("first", kindFuncProto, 2, 2, m.name("first"), 2, 1, 1) // 5
	m.add("mod", kindFunc, 0, 5)
	kernel, err := Parse(k.bytes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(m.bytes(), kernel)
	if err != nil || !s.HasFunc("mod") || s.HasFunc("own") || kernel.HasFunc("mod") {
		t.Fatalf("functions of the kernel and of a module: %v", err)
	}
	v, err := ask(s.Scope("mod", words{}), "first->next->long", fetch.PointEntry)
	if err != nil || !equal(v.Derefs, []int64{0, 8}) {
		t.Errorf("%+v, %v", v, err)
	}
	if got := s.Prototype("mod"); got != "struct node *mod(struct node *first, long long)" {
		t.Error(got)
	}
}

// raw builds types by hand: each is a name, a kind with a count, and what follows.
type raw struct {
	types, strings []byte
	before         uint32 // bytes of the strings of the base
}

func (r *raw) name(s string) uint32 {
	if len(r.strings) == 0 && r.before == 0 {
		r.strings = []byte{0}
	}
	off := len(r.strings)
	r.strings = append(append(r.strings, s...), 0)
	return r.before + uint32(off)
}

func (r *raw) add(name string, k kind, count int, words ...uint32) {
	off := uint32(0)
	if name != "" {
		off = r.name(name)
	}
	for _, w := range append([]uint32{off, uint32(k)<<24 | uint32(count)}, words...) {
		r.types = binary.LittleEndian.AppendUint32(r.types, w)
	}
}

func (r *raw) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, magic|1<<16)
	for _, w := range []uint32{headerSize, 0, uint32(len(r.types)), uint32(len(r.types)), uint32(len(r.strings))} {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return append(append(b, r.types...), r.strings...)
}

// TestHostile asks for names in types that lead in circles, have more members than can be, or names that no language has.
func TestHostile(t *testing.T) {
	r := &raw{}
	r.add("loop", kindTypedef, 0, 2)    // 1
	r.add("back", kindTypedef, 0, 1)    // 2
	r.add("", kindPointer, 0, 1)        // 3
	self := make([]uint32, 0, 3*0xffff) // members without names, each of the struct's own type
	for range 0xffff {
		self = append(self, 0, 4, 0)
	}
	r.add("fan", kindStruct, 0xffff, append([]uint32{8}, self...)...) // 4
	r.add("", kindPointer, 0, 4)                                      // 5
	r.add("", kindPointer, 0, 6)                                      // 6: to itself
	r.add("", kindArray, 0, 0, 7, 7, 0xffffffff)                      // 7: of itself
	r.add("", kindPointer, 0, 7)                                      // 8
	esc := r.name("\x1b[31mred")
	params := []uint32{r.name("loop"), 1, r.name("lp"), 3, r.name("fan"), 5, r.name("pp"), 6, r.name("arr"), 8, esc, 0xfffffff0, 0x7fffffff, 5}
	r.add("", kindFuncProto, len(params)/2, append([]uint32{1}, params...)...) // 9
	r.add("f", kindFunc, 0, 9)
	r.add("\x1b[2J", kindFunc, 0, 9)
	r.add("wrong", kindFunc, 0, 1)
	r.add("", kindFuncProto, 0xffff, append([]uint32{0}, make([]uint32, 2*0xffff)...)...) // 13
	r.add("crowd", kindFunc, 0, 13)
	begin := time.Now()
	s, err := Parse(r.bytes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range []string{"f", "wrong", "crowd", "none"} {
		sc := s.Scope(fn, words{})
		for _, text := range []string{"loop", "lp->x", "lp[1]", "fan->x", "fan->x->x", "fan[1].x", "pp->x", "arr[2]", "arr[2][3]", "loop->x"} {
			if v, err := ask(sc, text, fetch.PointEntry); err == nil {
				t.Errorf("%s: %s: %+v", fn, text, v)
			}
		}
		if _, err := ask(sc, "$retval", fetch.PointReturn); err == nil && fn == "f" {
			t.Error("the result has a type without an end")
		}
		if names, err := sc.Params(fetch.PointEntry, false); fn == "f" && strings.Join(names, " ") != "loop lp fan pp arr" || fn != "f" && err == nil {
			t.Errorf("%s: %q, %v", fn, names, err)
		}
		if p := s.Prototype(fn); strings.ContainsRune(p, 0x1b) || len(p) > 4096 {
			t.Errorf("%q", p)
		}
	}
	if s.HasFunc("\x1b[2J") {
		t.Error("a name that no language has")
	}
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestDamaged cuts and changes types at random: nothing may panic.
func TestDamaged(t *testing.T) {
	good := marshal(t, testFuncs)
	rnd := rand.New(rand.NewPCG(1, 2))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 3000 {
		b := append([]byte(nil), good...)
		for range 1 + rnd.IntN(8) {
			b[rnd.IntN(len(b))] = byte(rnd.Uint32())
		}
		if rnd.IntN(4) == 0 {
			b = b[:rnd.IntN(len(b))]
		}
		s, err := Parse(b, nil)
		if err != nil {
			continue
		}
		for _, fn := range []string{"f", "byvalue", "get", "text"} {
			sc := s.Scope(fn, words{})
			for _, text := range []string{"n->next->both", "n->pairs[1].b", "n->name", "n->across", "n->text[2]", "last", "pair", "wide"} {
				_, _ = ask(sc, text, fetch.PointEntry) // whatever it says
			}
			_, _ = ask(sc, "$retval->next", fetch.PointReturn)
			_, _ = sc.Params(fetch.PointEntry, false)
			_ = s.Prototype(fn)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 3000; n > 1<<20 {
		t.Errorf("%d bytes are taken for types of %d", n, len(good))
	}
}
