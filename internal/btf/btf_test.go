package btf

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	lib "github.com/cilium/ebpf/btf"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// Types of the tests' functions.
var (
	typeInt   = &lib.Int{Name: "int", Size: 4, Encoding: lib.Signed}
	typeLong  = &lib.Int{Name: "long int", Size: 8, Encoding: lib.Signed}
	typeUint  = &lib.Int{Name: "unsigned int", Size: 4}
	typeShort = &lib.Int{Name: "short int", Size: 2, Encoding: lib.Signed}
	typeChar  = &lib.Int{Name: "char", Size: 1, Encoding: lib.Signed}
	typeByte  = &lib.Typedef{Name: "u8", Type: &lib.Int{Name: "unsigned char", Size: 1}}
	typeBool  = &lib.Typedef{Name: "bool", Type: &lib.Int{Name: "_Bool", Size: 1, Encoding: lib.Bool}}
	typeWide  = &lib.Int{Name: "__int128", Size: 16, Encoding: lib.Signed}
	typeEnum  = &lib.Enum{Name: "mode", Size: 4, Values: []lib.EnumValue{{Name: "ON", Value: 1}}}
	typeEnum8 = &lib.Enum{Name: "wide", Size: 8, Signed: true, Values: []lib.EnumValue{{Name: "FAR", Value: 1 << 40}}}
	typeSmall = &lib.Struct{Name: "small", Size: 8, Members: []lib.Member{{Name: "v", Type: typeLong}}}
	typePair  = &lib.Struct{Name: "pair", Size: 16, Members: []lib.Member{{Name: "a", Type: typeLong}, {Name: "b", Type: typeLong, Offset: 64}}}
	typeLarge = &lib.Struct{Name: "large", Size: 24, Members: []lib.Member{{Name: "a", Type: array(typeLong, 3)}}}
	typeNode  = node()
)

func array(of lib.Type, n uint32) lib.Type { return &lib.Array{Index: typeUint, Type: of, Nelems: n} }
func ptr(to lib.Type) lib.Type             { return &lib.Pointer{Target: to} }

// node is a struct with members of all kinds, and a pointer to its own kind.
func node() lib.Type {
	n := &lib.Struct{Name: "node", Size: 128}
	inner := &lib.Struct{Size: 8, Members: []lib.Member{{Name: "low", Type: typeUint}, {Name: "high", Type: typeUint, Offset: 32}}}
	either := &lib.Union{Size: 8, Members: []lib.Member{{Name: "both", Type: typeLong}, {Type: inner}}}
	n.Members = []lib.Member{
		{Name: "next", Type: ptr(&lib.Const{Type: n})},
		{Type: either, Offset: 8 * 8},
		{Name: "flag", Type: typeUint, Offset: 16 * 8, BitfieldSize: 1},
		{Name: "level", Type: typeInt, Offset: 16*8 + 1, BitfieldSize: 5},
		{Name: "across", Type: typeUint, Offset: 16*8 + 30, BitfieldSize: 31},
		{Name: "byte", Type: typeUint, Offset: 24 * 8, BitfieldSize: 8},
		{Name: "name", Type: array(typeChar, 8), Offset: 32 * 8},
		{Name: "mac", Type: array(typeByte, 6), Offset: 40 * 8},
		{Name: "pairs", Type: array(typePair, 2), Offset: 48 * 8},
		{Name: "pair", Type: typePair, Offset: 80 * 8},
		{Name: "text", Type: ptr(&lib.Const{Type: typeChar}), Offset: 96 * 8},
		{Name: "many", Type: array(typeInt, 100), Offset: 104 * 8},
		{Name: "real", Type: &lib.Float{Name: "double", Size: 8}, Offset: 112 * 8},
		{Name: "void", Type: ptr(&lib.Void{}), Offset: 120 * 8},
	}
	return n
}

func function(name string, ret lib.Type, params ...lib.FuncParam) lib.Type {
	return &lib.Func{Name: name, Type: &lib.FuncProto{Return: ret, Params: params}, Linkage: lib.StaticFunc}
}

func arg(name string, t lib.Type) lib.FuncParam { return lib.FuncParam{Name: name, Type: t} }

// testFuncs are the functions.
var testFuncs = []lib.Type{
	function("f", typeInt, arg("n", ptr(&lib.Restrict{Type: typeNode})), arg("i", typeInt), arg("c", typeChar), arg("ok", typeBool),
		arg("mode", &lib.Volatile{Type: typeEnum}), arg("far", typeEnum8), arg("seventh", typeShort)),
	function("byvalue", &lib.Void{}, arg("small", typeSmall), arg("pair", typePair), arg("large", typeLarge), arg("wide", typeWide), arg("last", typeLong)),
	function("get", ptr(typeNode)),
	function("text", ptr(typeChar), arg("fmt", ptr(typeChar)), arg("", &lib.Void{})),
}

// marshal gives the bytes of types.
func marshal(t testing.TB, types []lib.Type) []byte {
	t.Helper()
	b, err := lib.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, &lib.MarshalOptions{Order: binary.LittleEndian})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func parsed(t testing.TB, types ...lib.Type) *Spec {
	t.Helper()
	s, err := Parse(marshal(t, types), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// words is a calling convention: four registers, and then the stack. A value of two words takes two, a larger one is in memory.
type words struct{ arch.ABI }

func (words) RetVal(int) (fetch.Base, error) { return fetch.Base{Reg: 9}, nil }

func (words) Place(params, _ []arch.Shape) (args, _ []arch.Placement, err error) {
	next := 0
	for _, p := range params {
		if p.Size > 16 {
			args = append(args, arch.Placement{Parts: []arch.ValuePart{{}}, Memory: true})
			continue
		}
		b := fetch.Base{Reg: fetch.Reg(next)}
		if next >= 4 {
			b = fetch.Base{Kind: fetch.BaseStack, N: next - 4}
		}
		args = append(args, arch.Placement{Parts: []arch.ValuePart{{At: b, Size: 8}}})
		next += int(p.Size+7) / 8
	}
	return args, nil, nil
}

// ask finds what an argument of a probe stands for.
func ask(s *Scope, text string, at fetch.Point) (*fetch.Var, error) {
	def := "p f " + text
	if at == fetch.PointReturn {
		def = "r f " + text
	}
	d, err := event.Parse(def)
	if err != nil {
		return nil, err
	}
	e := d.Args[0].Expr
	if e.Kind == event.ExprRetVal {
		e.Pos -= len("r f ")
		return s.Result(e)
	}
	e.Pos -= len("p f ")
	if e.Cast != nil {
		e.Cast.Pos -= len("p f ")
		return s.Cast(e)
	}
	return s.Name(e, at)
}

// TestFind finds parameters, results and what is in them.
func TestFind(t *testing.T) {
	spec := parsed(t, testFuncs...)
	u, s, x := event.Unsigned, event.Signed, event.Hex
	for _, c := range []struct {
		fn, text string
		base     fetch.Base
		derefs   []int64
		typ      fetch.Type
		count    int
		str      fetch.StrKind
	}{
		{fn: "f", text: "n", typ: fetch.Type{Kind: x, Size: 8}},
		{fn: "f", text: "i", base: fetch.Base{Reg: 1}, typ: fetch.Type{Kind: s, Size: 4}},
		{fn: "f", text: "c", base: fetch.Base{Reg: 2}, typ: fetch.Type{Kind: s, Size: 1}},
		{fn: "f", text: "ok", base: fetch.Base{Reg: 3}, typ: fetch.Type{Kind: u, Size: 1}},
		{fn: "f", text: "mode", base: fetch.Base{Kind: fetch.BaseStack}, typ: fetch.Type{Kind: s, Size: 4}},
		{fn: "f", text: "far", base: fetch.Base{Kind: fetch.BaseStack, N: 1}, typ: fetch.Type{Kind: s, Size: 8}},
		{fn: "f", text: "seventh", base: fetch.Base{Kind: fetch.BaseStack, N: 2}, typ: fetch.Type{Kind: s, Size: 2}},
		{fn: "f", text: "n->next", derefs: []int64{0}, typ: fetch.Type{Kind: x, Size: 8}},
		{fn: "f", text: "n->next->next->both", derefs: []int64{0, 0, 8}, typ: fetch.Type{Kind: s, Size: 8}},
		{fn: "f", text: "n->high", derefs: []int64{12}, typ: fetch.Type{Kind: u, Size: 4}},
		{fn: "f", text: "n->flag", derefs: []int64{16}, typ: fetch.Type{Kind: u, Size: 4, Width: 1}},
		{fn: "f", text: "n->level", derefs: []int64{16}, typ: fetch.Type{Kind: s, Size: 4, Width: 5, Shift: 1}},
		{fn: "f", text: "n->across", derefs: []int64{19}, typ: fetch.Type{Kind: u, Size: 8, Width: 31, Shift: 6}},
		{fn: "f", text: "n->byte", derefs: []int64{24}, typ: fetch.Type{Kind: u, Size: 4, Width: 8}},
		{fn: "f", text: "n->name", derefs: []int64{32}, typ: fetch.Type{Kind: event.String}, str: fetch.StrHere},
		{fn: "f", text: "n->name[3]", derefs: []int64{35}, typ: fetch.Type{Kind: s, Size: 1}},
		{fn: "f", text: "n->mac", derefs: []int64{40}, typ: fetch.Type{Kind: u, Size: 1}, count: 6, str: fetch.StrHere},
		{fn: "f", text: "n->pairs[1].b", derefs: []int64{72}, typ: fetch.Type{Kind: s, Size: 8}},
		{fn: "f", text: "n->pair.b", derefs: []int64{88}, typ: fetch.Type{Kind: s, Size: 8}},
		{fn: "f", text: "n->text", derefs: []int64{96}, typ: fetch.Type{Kind: x, Size: 8}, str: fetch.StrPointer},
		{fn: "f", text: "n->text[2]", derefs: []int64{96, 2}, typ: fetch.Type{Kind: s, Size: 1}},
		{fn: "f", text: "n->many", derefs: []int64{104}, typ: fetch.Type{Kind: s, Size: 4}, count: 64},
		{fn: "f", text: "n[2].low", derefs: []int64{264}, typ: fetch.Type{Kind: u, Size: 4}},
		{fn: "f", text: "n->void", derefs: []int64{120}, typ: fetch.Type{Kind: x, Size: 8}},
		{fn: "f", text: "(node)%di->next", derefs: []int64{0}, typ: fetch.Type{Kind: x, Size: 8}},
		{fn: "f", text: "(node)(+8($arg1))->next->level", derefs: []int64{0, 16}, typ: fetch.Type{Kind: s, Size: 4, Width: 5, Shift: 1}},
		{fn: "f", text: "(node,pair.b)%di->text", derefs: []int64{8}, typ: fetch.Type{Kind: x, Size: 8}, str: fetch.StrPointer},
		{fn: "f", text: "(node,pair)%di->next->high", derefs: []int64{-80, 12}, typ: fetch.Type{Kind: u, Size: 4}},
		{fn: "f", text: "$retval", base: fetch.Base{Reg: 9}, typ: fetch.Type{Kind: s, Size: 4}},
		{fn: "get", text: "$retval->next->both", base: fetch.Base{Reg: 9}, derefs: []int64{0, 8}, typ: fetch.Type{Kind: s, Size: 8}},
		{fn: "text", text: "$retval", base: fetch.Base{Reg: 9}, typ: fetch.Type{Kind: x, Size: 8}, str: fetch.StrPointer},
		{fn: "byvalue", text: "small", typ: fetch.Type{Kind: x, Size: 8}},
		{fn: "byvalue", text: "pair", base: fetch.Base{Reg: 1}, typ: fetch.Type{Kind: x, Size: 8}},
		{fn: "byvalue", text: "last", base: fetch.Base{Kind: fetch.BaseStack, N: 1}, typ: fetch.Type{Kind: s, Size: 8}},
	} {
		at := fetch.PointEntry
		if strings.HasPrefix(c.text, "$") {
			at = fetch.PointReturn
		}
		v, err := ask(spec.Scope(c.fn, words{}), c.text, at)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if v.Base != c.base || !equal(v.Derefs, c.derefs) || v.Type != c.typ || v.Count != c.count || v.Str != c.str || v.AtEntry || v.Result != (at == fetch.PointReturn) {
			t.Errorf("%s: %+v", c.text, v)
		}
	}
	if v, err := ask(spec.Scope("f", words{}), "n->next", fetch.PointReturn); err != nil || !v.AtEntry || v.Result {
		t.Errorf("a parameter at a return: %+v, %v", v, err)
	}
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestRefused refuses what is not there, with the kernel's codes and columns; ^ stands before the column.
func TestRefused(t *testing.T) {
	spec := parsed(t, testFuncs...)
	none := None(nil, errors.New("nothing is known"))
	for _, c := range []struct {
		s    *Scope
		fn   string
		text string
		code event.Code
		at   fetch.Point
	}{
		{fn: "f", text: "^none", code: event.NoBTFArg},
		{fn: "f", text: "n^", code: event.NosupBTFArg, at: fetch.PointInside},
		{fn: "f", text: "n->^none", code: event.NoBTFField},
		{fn: "f", text: "n->next->^none->next", code: event.NoBTFField},
		{fn: "f", text: "i->^none", code: event.NoPtrStrct},
		{fn: "f", text: "n->pair->^a", code: event.NoPtrStrct},
		{fn: "f", text: "n->next.^low", code: event.BadBTFTid},
		{fn: "f", text: "n->low.^x", code: event.BadBTFTid},
		{fn: "f", text: "n->void->^x", code: event.BadBTFTid},
		{fn: "f", text: "n->text->^x", code: event.BadBTFTid},
		{fn: "f", text: "n.^low", code: event.NosupDatArg},
		{fn: "f", text: "none.^low", code: event.NosupDatArg},
		{fn: "f", text: "^n->pair", code: event.NosupDatArg},
		{fn: "f", text: "^n->pairs", code: event.NosupDatArg},
		{fn: "f", text: "^n->real", code: event.NosupDatArg},
		{fn: "f", text: "n->pairs[^2].a", code: event.NoBTFField},
		{fn: "f", text: "n->^", code: event.NoBTFField},
		{fn: "f", text: "n->text->^", code: event.NoBTFField},
		{fn: "f", text: "n->pair.^", code: event.NoBTFField},
		{fn: "f", text: "i[^0]", code: event.NoBTFField},
		{fn: "f", text: "n->void[^0]", code: event.NoBTFField},
		{fn: "f", text: "n[^2147483647]", code: event.NoBTFField},
		{fn: "byvalue", text: "^large", code: event.NosupDatArg},
		{fn: "byvalue", text: "^wide", code: event.NosupDatArg},
		{fn: "byvalue", text: "small.^v", code: event.NosupDatArg},
		{fn: "byvalue", text: "^$retval", code: event.NoRetval, at: fetch.PointReturn},
		{fn: "get", text: "^n", code: event.NoBTFEntry},
		{fn: "get", text: "$retval.^next", code: event.NosupDatArg, at: fetch.PointReturn},
		{fn: "f", text: "$retval->^x", code: event.NoPtrStrct, at: fetch.PointReturn},
		{fn: "f", text: "(^none)%di->x", code: event.BadBTFTid},
		{fn: "f", text: "(node)%di->^none", code: event.NoBTFField},
		{fn: "f", text: "(node,^none)%di->next", code: event.NoBTFField},
		{fn: "f", text: "(node,^flag)%di->next", code: event.TypecastNotAligned},
		{s: none, text: "^(node)%di->next", code: event.NosupBTFArg},
		{s: none, text: "^n", code: event.NoBTFEntry},
		{s: none, text: "$retval->^x", code: event.NoBTFEntry, at: fetch.PointReturn},
	} {
		s := c.s
		if s == nil {
			s = spec.Scope(c.fn, words{})
		}
		text, col := strings.Replace(c.text, "^", "", 1), strings.Index(c.text, "^")
		if c.at == fetch.PointInside {
			col = 0
		}
		_, err := ask(s, text, c.at)
		var bad *fetch.NameError
		if !errors.As(err, &bad) || bad.Code != c.code || bad.Pos != col {
			t.Errorf("%s: %v: %+v", c.text, err, bad)
		}
	}
	if v, err := ask(none, "$retval", fetch.PointReturn); v != nil || err != nil {
		t.Errorf("a result of which nothing is known: %+v, %v", v, err)
	}
}

// TestParams lists parameters, without the variable ones.
func TestParams(t *testing.T) {
	spec := parsed(t, testFuncs...)
	names, err := spec.Scope("text", words{}).Params(fetch.PointEntry, false)
	if err != nil || strings.Join(names, " ") != "fmt" {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := spec.Scope("get", words{}).Params(fetch.PointEntry, false); err == nil {
		t.Error("a function without parameters has some")
	}
	if _, err := spec.Scope("f", words{}).Params(fetch.PointInside, true); err == nil {
		t.Error("parameters are named inside of a function")
	}
}

// TestPrototype declares functions as C does.
func TestPrototype(t *testing.T) {
	spec := parsed(t, append(testFuncs, function("cb", ptr(&lib.Void{}), arg("f", ptr(&lib.FuncProto{Return: typeInt})), arg("a", ptr(array(typeInt, 3)))))...)
	for fn, want := range map[string]string{
		"f":       "int f(struct node *n, int i, char c, bool ok, enum mode mode, enum wide far, short int seventh)",
		"byvalue": "void byvalue(struct small small, struct pair pair, struct large large, __int128 wide, long int last)",
		"get":     "struct node *get(void)",
		"text":    "char *text(char *fmt, ...)",
		"cb":      "void *cb(int (*f)(...), int (*a)[3])",
		"none":    "",
	} {
		if got := spec.Prototype(fn); got != want {
			t.Errorf("%s: %q, want %q", fn, got, want)
		}
	}
}
