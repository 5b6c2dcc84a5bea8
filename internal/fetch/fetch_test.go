package fetch

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kprobes.dev/kprobes/event"
)

// TestValues runs arguments over the machine's memory and compares what is printed.
func TestValues(t *testing.T) {
	for _, c := range []struct{ arg, text, json string }{
		{"%r1", "0xfffffffffffffffe", `"18446744073709551614"`},
		{"%r1:u8", "254", "254"},
		{"%r1:u16", "65534", "65534"},
		{"%r1:u32", "4294967294", "4294967294"},
		{"%r1:u64", "18446744073709551614", `"18446744073709551614"`},
		{"%r1:s8", "-2", "-2"},
		{"%r1:s16", "-2", "-2"},
		{"%r1:s32", "-2", "-2"},
		{"%r1:s64", "-2", "-2"},
		{"%r1:x8", "0xfe", "254"},
		{"%r1:x16", "0xfffe", "65534"},
		{"%r1:x32", "0xfffffffe", "4294967294"},
		{"%r3:s8", "5", "5"},
		{"%seg:u16", "51", "51"},
		{`\65:char`, `'A'`, `"A"`},
		{`\39:char`, `'\''`, `"'"`},
		{`\10:char`, `'\n'`, `"\u000a"`},
		{`\0:char`, `'\x00'`, `"\u0000"`},
		{`\127:char`, `'\x7f'`, `"\u007f"`},
		{`\0xe9:char`, `'\xe9'`, `"é"`},
		{`\-5:s32`, "-5", "-5"},
		{`\0x10`, "0x10", "16"},

		// Bits.
		{`\0xabcd:b4@8/16`, "11", "11"},
		{`\0xabcd:b1@0/8`, "1", "1"},
		{`\0xabcd:b8@0/8`, "205", "205"},
		{`\0xabcd:b16@0/32`, "43981", "43981"},
		{`\-1:b64@0/64`, "18446744073709551615", `"18446744073709551615"`},
		{`\-1:b1@63/64`, "1", "1"},
		{"+0(%r0):b4@4/8", "8", "8"},
		{"+0(%r0):b4@4/8[3]", "{8,2,3}", "[8,2,3]"},

		// Memory.
		{"+0(%r0)", "0x8877665544332281", `"9833440827789222529"`},
		{"+0(%r0):u8", "129", "129"},
		{"+0(%r0):s8", "-127", "-127"},
		{"+u1(%r0):x16", "0x3322", "13090"},
		{"+4(%r0):x32", "0x88776655", "2289526357"},
		{"+8(%r0):x64", "0x1010", "4112"},
		{"+1(+8(%r0)):u8", "2", "2"},
		{"-16(+8(%r0)):x8", "0x81", "129"},
		{"@0:u32", "77", "77"},
		{"@0x2000:u32", "77", "77"},
		{"@counter:u32", "77", "77"},
		{"@counter+8", "0x401230", "4198960"},
		{"@counter-4088:x64", "0x1010", "4112"},
		{"+0(@counter+8):u8", "0", "0"}, // nothing is mapped there
		{"+0x10(%r3):u64", "0", "0"},
		{"$stack", "0x7000", "28672"},
		{"$stack0", "0x400000", "4194304"},
		{"$stack1:x32", "0x3000", "12288"},
		{"+8($stack):x16", "0x3000", "12288"},
		{"+0(%r0):u8[4]", "{129,34,51,68}", "[129,34,51,68]"},
		{"+0(%r0):s8[2]", "{-127,34}", "[-127,34]"},
		{"+0(%r0):x32[3]", "{0x44332281,0x88776655,0x1010}", "[1144201857,2289526357,4112]"},
		{"+0(%r0):u64[1]", "{9833440827789222529}", `["9833440827789222529"]`},
		{`\0x1fffffffffffff:u64`, "9007199254740991", "9007199254740991"},
		{`\0x20000000000000:u64`, "9007199254740992", `"9007199254740992"`},
		{`\0x20000000000000`, "0x20000000000000", `"9007199254740992"`},
		{`\-9007199254740991:s64`, "-9007199254740991", "-9007199254740991"},
		{`\-9007199254740992:s64`, "-9007199254740992", `"-9007199254740992"`},
		{"+0(%r2):char[3]", "{'h','e','l'}", `["h","e","l"]`},
		{"+0(%r3):u16[2]", "{0,0}", "[0,0]"},

		// Symbols.
		{"%ip:symbol", "vfs_read+0x4/0xd0", `"vfs_read+0x4/0xd0"`},
		{"%ip:symstr", `"vfs_read+0x4/0xd0"`, `"vfs_read+0x4/0xd0"`},
		{"@counter+8:symbol", "vfs_read+0x0/0xd0", `"vfs_read+0x0/0xd0"`},
		{"%r2:symbol", `data\x1b+0x0/0x10 [libx.so]`, `"data\\x1b+0x0/0x10 [libx.so]"`},
		{"%r3:symbol", "0x5", `"0x5"`},
		{"%r1:symbol", "0xfffffffffffffffe", `"0xfffffffffffffffe"`},
		{"@counter:symbol[2]", "{0x4d,vfs_read+0x0/0xd0}", `["0x4d","vfs_read+0x0/0xd0"]`},

		// Strings.
		{"+0(%r2):string", `"hello"`, `"hello"`},
		{"+0(%r2):ustring", `"hello"`, `"hello"`},
		{"+u0(%r2):string", `"hello"`, `"hello"`},
		{"+5(%r2):string", `""`, `""`},
		{"+6(%r2):string", `"wo\"r\\ld\n\x1b[31m\xffé"`, `"wo\"r\\ld\u000a\u001b[31m` + "\ufffdé" + `"`},
		{"+0(%r3):string", "(fault)", "null"},
		{"+0(+0(%r4)):string", `"hello"`, `"hello"`},
		{"+0(+8(%r4)):string", "(fault)", "null"},
		{"+0(+0(%r3)):string", "(fault)", "null"},
		{"@0x3000:string", `"hello"`, `"hello"`},
		{`\0x3000:string`, `"hello"`, `"hello"`},
		{"+0(%r4):string[1]", `{"hello"}`, `["hello"]`},
		{"+0(%r4):string[2]", `{"hello",(fault)}`, `["hello",null]`},
		{"$comm", `"a \"b\x1b"`, `"a \"b\u001b"`},
		{`\"lit":string`, `"lit"`, `"lit"`},

		// Strings with a length.
		{"$arg2:gostring", `"hello"`, `"hello"`},
		{"$stack1:gostring", `"hel"`, `"hel"`},
		{"+0(%r7):gostring", `"hell"`, `"hell"`},
		{"+0x10(%r7):gostring", "(fault)", "null"},
		{"+0(%r3):gostring", "(fault)", "null"},
		{`@0x4018:gostring`, `"hell"`, `"hell"`},
		{"$arg5:gostring", `"hel"`, `"hel"`},
	} {
		p := compile(t, "p f first=%r3 x="+c.arg+" last=%r3:u8", PointEntry)
		rec := newMachine().record(p, 24)
		vs, err := p.Decode(rec, 24, "a \"b\x1b")
		if err != nil {
			t.Errorf("%s: %v", c.arg, err)
			continue
		}
		if got, want := string(AppendValues(nil, vs, symbols)), " first=0x5 x="+c.text+" last=5"; got != want {
			t.Errorf("%s: got %s, want %s", c.arg, got, want)
		}
		js := vs[1].AppendJSON(nil, symbols)
		if string(js) != c.json || !json.Valid(js) {
			t.Errorf("%s: JSON %s, want %s", c.arg, js, c.json)
		}
	}
}

// TestReturn has values of both ends of a call.
func TestReturn(t *testing.T) {
	p := compile(t, "r f $retval:u32 n=$arg1 s=+0($arg2):string t=$retval:gostring u=$arg2:gostring %r3 w=$stack1 v=+0($retval):string $comm", PointReturn)
	if !p.Return || !p.Dynamic {
		t.Errorf("%+v", p)
	}
	type place struct {
		Entry, Result bool
		Base, Len     Base
	}
	var got []place
	for _, a := range p.Args {
		got = append(got, place{a.AtEntry, a.Result, a.Base, a.Len})
	}
	want := []place{
		{false, true, reg(5), Base{}},
		{true, false, reg(1), Base{}},
		{true, false, reg(2), Base{}},
		{false, true, reg(5), reg(6)},
		{true, false, reg(2), reg(3)},
		{false, false, reg(3), Base{}},
		{false, false, Base{Kind: BaseStack, N: 1}, Base{}},
		{false, true, reg(5), Base{}},
		{false, false, Base{Kind: BaseComm}, Base{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	vs, err := p.Decode(newMachine().record(p, 32), 32, "me")
	if err != nil {
		t.Fatal(err)
	}
	text := ` arg1=12288 n=0xfffffffffffffffe s="hello" t="he" u="hello" arg6=0x5 w=0x3000 v="hello" arg9="me"`
	if got := string(AppendValues(nil, vs, nil)); got != text {
		t.Errorf("got %s", got)
	}
	HideResults(vs)
	text = ` arg1=(unknown) n=0xfffffffffffffffe s="hello" t=(unknown) u="hello" arg6=0x5 w=0x3000 v=(unknown) arg9="me"`
	if got := string(AppendValues(nil, vs, nil)); got != text {
		t.Errorf("got %s", got)
	}
	if got := string(vs[0].AppendJSON(nil, nil)); got != "null" {
		t.Errorf("unknown in JSON: %s", got)
	}
}

// TestSlots compares the layout of the argument area.
func TestSlots(t *testing.T) {
	p := compile(t, `p f a=%r0:u8 b=+0(%r0):u8[3] c=+0(%r0):u16[5] d=$comm e=+0(%r0):string f=+0(%r0):string[3] g=\"x" h=+0(%r0):gostring i=+0(%r0):b1@0/8[9] j=@counter`, PointEntry)
	var got []string
	for _, a := range p.Args {
		got = append(got, fmt.Sprintf("%s %d+%d store %d size %d count %d derefs %v", a.Name, a.Off, a.slot(), a.Store, a.Size, a.Count, a.Derefs))
	}
	want := []string{
		"a 0+8 store 1 size 1 count 0 derefs []",
		"b 8+8 store 2 size 1 count 3 derefs [0]",
		"c 16+16 store 2 size 2 count 5 derefs [0]",
		"d 32+0 store 0 size 0 count 0 derefs []",
		"e 32+8 store 3 size 1 count 0 derefs [0]",
		"f 40+24 store 4 size 1 count 3 derefs [0]",
		"g 64+0 store 0 size 0 count 0 derefs []",
		"h 64+8 store 5 size 1 count 0 derefs [0]",
		"i 72+16 store 2 size 1 count 9 derefs [0]",
		"j 88+8 store 1 size 8 count 0 derefs [0]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if p.Fixed != 96 || !p.Dynamic || p.Return {
		t.Errorf("fixed %d, dynamic %v, return %v", p.Fixed, p.Dynamic, p.Return)
	}
	if q := compile(t, "p f %r0 $comm", PointInside); q.Dynamic || q.Fixed != 8 {
		t.Errorf("%+v", q)
	}
	if q := compile(t, "p f -8(+0x10(-1(%r0)))", PointInside); !cmp.Equal(q.Args[0].Derefs, []int64{-1, 16, -8}) {
		t.Errorf("derefs %v", q.Args[0].Derefs)
	}
}

// TestErrors compiles what cannot be had; the ^ stands where the caret belongs.
func TestErrors(t *testing.T) {
	big := " p0=+0(%r0):u64[64]"
	for _, c := range []struct {
		in   string
		at   Point
		code event.Code
		no   syscall.Errno
	}{
		{"p f ^%none_reg", PointEntry, event.BadRegName, syscall.EINVAL},
		{"p f ^%rax", PointEntry, event.BadRegName, syscall.EINVAL},
		{"p f a=+0(+8(^%r8)):u8", PointEntry, event.BadRegName, syscall.EINVAL},
		{"p f+4 ^$arg1", PointInside, event.NofentryArgs, syscall.EINVAL},
		{"p f+4 +0(^$arg1):string", PointInside, event.NofentryArgs, syscall.EINVAL},
		{"p f ^$arg9", PointEntry, event.BadArgNum, syscall.EINVAL},
		{"p f ^$arg8:gostring", PointEntry, event.BadArgNum, syscall.EINVAL},
		{"r f ^$arg9", PointReturn, event.BadArgNum, syscall.EINVAL},
		{"r f ^$retval", PointEntry, event.RetvalOnProbe, syscall.EINVAL},
		{"p f ^@nosuch", PointEntry, event.BadMemAddr, syscall.ENOENT},
		{"p f x=+0(^@nosuch+8):u8", PointEntry, event.BadMemAddr, syscall.ENOENT},
		{"p f ^file", PointEntry, event.NoBTFArg, syscall.ENOENT},
		{"p f n=^file->f_pos:u32", PointEntry, event.NoBTFArg, syscall.ENOENT},
		{"p f ^$arg*", PointEntry, event.NosupBTFArg, syscall.EINVAL},
		{"p f" + strings.Repeat(big, 6) + " ^x=%r0", PointEntry, event.EventTooBig, syscall.E2BIG},
	} {
		n := 0
		for strings.Contains(c.in, "p0=") {
			n++
			c.in = strings.Replace(c.in, "p0=", fmt.Sprintf("q%d=", n), 1)
		}
		pos := strings.IndexByte(c.in, '^')
		d, err := event.Parse(strings.Replace(c.in, "^", "", 1))
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		p, err := Compile(d, testEnv{}, c.at)
		var e *event.Error
		if !errors.As(err, &e) || e.Code != c.code || e.Pos != pos || p != nil {
			t.Errorf("%s: got %v, want %v at %d", c.in, err, c.code, pos)
		}
		if !errors.Is(err, c.no) {
			t.Errorf("%s: %v is not %v", c.in, err, c.no)
		}
	}
}

// TestDamaged changes the slots of a record as a hostile target could.
func TestDamaged(t *testing.T) {
	p := compile(t, "p f n=%r0:u64 s=+0(%r2):string a=+0(%r4):string[2] g=$arg2:gostring", PointEntry)
	const head = 16
	good := newMachine().record(p, head)
	if vs, err := p.Decode(good, head, ""); err != nil || string(vs[1].Str) != "hello" || string(vs[3].Str) != "hello" {
		t.Fatalf("%v, %v", vs, err)
	}
	size := uint64(len(good))
	long := append(append([]byte(nil), good...), make([]byte, 2*MaxString)...)
	for _, c := range []struct {
		name string
		slot int // byte of the argument area
		v    uint64
		bad  string // the argument that is refused
	}{
		{"offset before the strings", 8, 16<<32 | 4, "s"},
		{"offset in the fixed part", 8, uint64(head+p.Fixed-1)<<32 | 4, "s"},
		{"offset behind the record", 8, size<<32 | 1, "s"},
		{"offset far behind", 8, 0xffffffff<<32 | 1, "s"},
		{"length behind the record", 8, (size-4)<<32 | 5, "s"},
		{"length above the limit", 8, size<<32 | MaxString + 1, "s"},
		{"length at the limit", 8, size<<32 | MaxString, ""},
		{"length and offset wrap", 8, 0xffffffff<<32 | 0xfffffffe, "s"},
		{"second element", 24, size<<32 | 9, "a"},
		{"counted length", 32, (size-1)<<32 | 2, "g"},
		{"counted length nearly a fault", 32, 0xfffffffe, "g"},
		{"number", 0, 1<<64 - 1, ""},
		{"end of the record", 8, (size-1)<<32 | 1, ""},
	} {
		rec := append([]byte(nil), good...)
		if strings.HasSuffix(c.name, "the limit") {
			rec = append([]byte(nil), long...)
		}
		binary.LittleEndian.PutUint64(rec[head+c.slot:], c.v)
		_, err := p.Decode(rec, head, "")
		if c.bad == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !errors.Is(err, ErrRecord) || !strings.HasPrefix(err.Error(), "argument "+c.bad+":") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, n := range []int{0, head, head + p.Fixed - 1} {
		if _, err := p.Decode(good[:n], head, ""); !errors.Is(err, ErrRecord) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := p.Decode(good, -1, ""); !errors.Is(err, ErrRecord) {
		t.Errorf("negative base: %v", err)
	}
	if _, err := p.Decode(good, len(good)+1, ""); !errors.Is(err, ErrRecord) {
		t.Errorf("base behind the record: %v", err)
	}
}

// TestUnterminated has a string whose NUL is missing: it ends with its length.
func TestUnterminated(t *testing.T) {
	p := compile(t, "p f s=+0(%r2):string", PointEntry)
	rec := append(make([]byte, 8), "abcdefgh"...)
	binary.LittleEndian.PutUint64(rec, 8<<32|3)
	vs, err := p.Decode(rec, 0, "")
	if err != nil || string(vs[0].Str) != "abc" {
		t.Errorf("%v, %v", vs, err)
	}
}

func TestDecodeIntoAllocates(t *testing.T) {
	p := compile(t, "p f %r0 %r1:s32 s=+0(%r2):string b=%r3:b1@0/8", PointEntry)
	rec := newMachine().record(p, 16)
	var vs []Value
	var text []byte
	n := testing.AllocsPerRun(100, func() {
		var err error
		if vs, err = p.DecodeInto(vs[:0], rec, 16, ""); err != nil {
			t.Error(err)
		}
		text = AppendValues(text[:0], vs, nil)
	})
	if n > 0 {
		t.Errorf("%v allocations a record", n)
	}
}

func FuzzDecode(f *testing.F) {
	lines := []string{
		"p f a=+0(%r2):string b=+0(%r4):string[3] c=$arg2:gostring d=%r0:char e=+0(%r0):b3@1/8[5] g=%ip:symbol $comm",
		"r f +0(%r4):u64[4] $retval:s16 i=+0(%r7):gostring +0($arg1):symstr[2]",
	}
	for i, l := range lines {
		d, err := event.Parse(l)
		if err != nil {
			f.Fatal(err)
		}
		p, err := Compile(d, testEnv{}, []Point{PointEntry, PointReturn}[i])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(i, 16, newMachine().record(p, 16), "comm")
		f.Add(i, 0, make([]byte, 200), "\xff\n")
	}
	f.Fuzz(func(t *testing.T, i, base int, rec []byte, comm string) {
		d, err := event.Parse(lines[i&1])
		if err != nil {
			t.Fatal(err)
		}
		p, err := Compile(d, testEnv{}, []Point{PointEntry, PointReturn}[i&1])
		if err != nil {
			t.Fatal(err)
		}
		vs, err := p.Decode(rec, base, comm)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Fatal(err)
			}
			return
		}
		for _, c := range AppendValues(nil, vs, nil) {
			if c < ' ' || c == 0x7f {
				t.Fatalf("control byte in %q", AppendValues(nil, vs, nil))
			}
		}
		for j := range vs {
			if js := vs[j].AppendJSON(nil, nil); !json.Valid(js) {
				t.Fatalf("not JSON: %s", js)
			}
		}
	})
}
