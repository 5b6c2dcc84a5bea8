package event

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustParse(t *testing.T, line string) *Def {
	t.Helper()
	d, err := Parse(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return d
}

func TestParseHeads(t *testing.T) {
	for _, c := range []struct {
		in, print string
		kind      Kind
		max       int
		group     string
		name      string
	}{
		{"p vfs_read", "p:kprobes/p_vfs_read_0 vfs_read", Probe, 0, "kprobes", ""},
		{"p:foo vfs_read", "p:kprobes/foo vfs_read", Probe, 0, "kprobes", "foo"},
		{"p:grp/foo vfs_read", "p:grp/foo vfs_read", Probe, 0, "grp", "foo"},
		{"p:grp.foo vfs_read", "p:grp/foo vfs_read", Probe, 0, "grp", "foo"},
		{"p:my-grp/_f1 vfs_read", "p:my-grp/_f1 vfs_read", Probe, 0, "my-grp", "_f1"},
		{"p:grp/ vfs_read", "p:grp/p_vfs_read_0 vfs_read", Probe, 0, "grp", ""},
		{"p:" + long[1:] + "/" + long[1:] + " f", "p:" + long[1:] + "/" + long[1:] + " f", Probe, 0, long[1:], long[1:]},
		{"r vfs_read", "r:kprobes/r_vfs_read_0 vfs_read", Return, 0, "kprobes", ""},
		{"r0:foo vfs_read", "r:kprobes/foo vfs_read", Return, 0, "kprobes", "foo"},
		{"p:foo +0x1000", "p:kprobes/foo 0x1000", Probe, 0, "kprobes", "foo"},
		{"p:foo vfs_read-0", "p:kprobes/foo vfs_read", Probe, 0, "kprobes", "foo"},
		{"p:foo a:b:c", "p:kprobes/foo a:b:c", Probe, 0, "kprobes", "foo"},
		{"r100 vfs_read", "r100:kprobes/r_vfs_read_0 vfs_read", Return, 100, "kprobes", ""},
		{"r0x10:foo vfs_read", "r16:kprobes/foo vfs_read", Return, 16, "kprobes", "foo"},
		{"r4096:foo vfs_read", "r4096:kprobes/foo vfs_read", Return, 4096, "kprobes", "foo"},
		{"p:foo vfs_read%return", "r:kprobes/foo vfs_read", Return, 0, "kprobes", "foo"},
		{"r:foo vfs_read%return", "r:kprobes/foo vfs_read", Return, 0, "kprobes", "foo"},
		{"f vfs_read", "f:fprobes/vfs_read__entry vfs_read", Probe, 0, "fprobes", ""},
		{"f vfs_*%return", "f:fprobes/vfs____exit vfs_*%return", Return, 0, "fprobes", ""},
		{"f8:grp/foo vfs_read%return count", "f8:grp/foo vfs_read%return count=count", Return, 8, "grp", "foo"},
		{"f4:foo vfs_read $retval", "f4:fprobes/foo vfs_read%return arg1=$retval", Return, 4, "fprobes", "foo"},
		{"-:foo", "-:foo", Delete, 0, "", "foo"},
		{"-:grp/foo", "-:grp/foo", Delete, 0, "grp", "foo"},
		{"-:grp/", "-:grp/", Delete, 0, "grp", ""},
		{"\t p:foo   vfs_read\v%di # x", "p:kprobes/foo vfs_read arg1=%di", Probe, 0, "kprobes", "foo"},
		{"p:foo vfs_read#comment", "p:kprobes/foo vfs_read", Probe, 0, "kprobes", "foo"},
	} {
		d := mustParse(t, c.in)
		if d.Kind != c.kind || d.MaxActive != c.max || d.Group != c.group || d.Name != c.name {
			t.Errorf("%s: %+v", c.in, d)
		}
		if d.String() != c.print {
			t.Errorf("%s: printed %s, want %s", c.in, d, c.print)
		}
	}
	for _, blank := range []string{"", " \t", "# p f", "  #"} {
		if d, err := Parse(blank); d != nil || err != nil {
			t.Errorf("%q: %v, %v", blank, d, err)
		}
	}
	if got := mustParse(t, " p:foo  f\ta=%di ").Text; got != "p:foo f a=%di" {
		t.Errorf("text %q", got)
	}
}

// TestArgs compares name, expression and type of arguments of a return probe, which may
// use everything. Positions are those in the argument.
func TestArgs(t *testing.T) {
	hex := TypeSpec{Kind: Hex, Size: 8}
	at := func(pos int, ty TypeSpec, text string) TypeSpec { ty.Pos, ty.Text = pos, text; return ty }
	for _, c := range []struct {
		in, name string
		expr     Expr
		ty       TypeSpec
	}{
		{"%di", "arg1", Expr{Kind: ExprReg, Name: "di"}, hex},
		{"a=%r10:u8", "a", Expr{Kind: ExprReg, Name: "r10", Pos: 2}, at(7, TypeSpec{Kind: Unsigned, Size: 1}, "u8")},
		{"$arg1:s16", "arg1", Expr{Kind: ExprArg, Num: 1}, at(6, TypeSpec{Kind: Signed, Size: 2}, "s16")},
		{"$arg2048", "arg1", Expr{Kind: ExprArg, Num: 2048}, hex},
		{"$retval:x32", "arg1", Expr{Kind: ExprRetVal}, at(8, TypeSpec{Kind: Hex, Size: 4}, "x32")},
		{"$stack", "arg1", Expr{Kind: ExprStack}, hex},
		{"$stack0:u64", "arg1", Expr{Kind: ExprStackN}, at(8, TypeSpec{Kind: Unsigned, Size: 8}, "u64")},
		{"$stack2048", "arg1", Expr{Kind: ExprStackN, Num: 2048}, hex},
		{"$comm", "arg1", Expr{Kind: ExprComm}, TypeSpec{Kind: String}},
		{"$COMM:string", "arg1", Expr{Kind: ExprComm}, at(6, TypeSpec{Kind: String}, "string")},
		{"@0x401000:u32", "arg1", Expr{Kind: ExprAddr, Num: 0x401000}, at(10, TypeSpec{Kind: Unsigned, Size: 4}, "u32")},
		{"@jiffies", "arg1", Expr{Kind: ExprSymbol, Name: "jiffies"}, hex},
		{"@jiffies+8", "arg1", Expr{Kind: ExprSymbol, Name: "jiffies", Off: 8}, hex},
		{"@jiffies-0x10", "arg1", Expr{Kind: ExprSymbol, Name: "jiffies", Off: -16}, hex},
		{"@ns::v:string", "arg1", Expr{Kind: ExprSymbol, Name: "ns::v"}, at(7, TypeSpec{Kind: String}, "string")},
		{"@go.mod/x-y.v", "arg1", Expr{Kind: ExprSymbol, Name: "go.mod/x-y.v"}, hex},
		{`@"a b:c"+4:u8`, "arg1", Expr{Kind: ExprSymbol, Name: "a b:c", Off: 4}, at(11, TypeSpec{Kind: Unsigned, Size: 1}, "u8")},
		{`@"operator=="`, "arg1", Expr{Kind: ExprSymbol, Name: "operator=="}, hex},
		{`\123`, "arg1", Expr{Kind: ExprImm, Num: 123}, hex},
		{`\-5:s8`, "arg1", Expr{Kind: ExprImm, Num: 1<<64 - 5}, at(4, TypeSpec{Kind: Signed, Size: 1}, "s8")},
		{`\+-5`, "arg1", Expr{Kind: ExprImm, Num: 1<<64 - 5}, hex},
		{`\++5`, "arg1", Expr{Kind: ExprImm, Num: 5}, hex},
		{`\+5`, "arg1", Expr{Kind: ExprImm, Num: 5}, hex},
		{`\0x10`, "arg1", Expr{Kind: ExprImm, Num: 16}, hex},
		{`\0x401000:string`, "arg1", Expr{Kind: ExprImm, Num: 0x401000}, at(10, TypeSpec{Kind: String}, "string")},
		{`s=\"a:b=c"`, "s", Expr{Kind: ExprString, Name: "a:b=c", Pos: 2}, TypeSpec{Kind: String, Pos: 2}},
		{`\"":string`, "arg1", Expr{Kind: ExprString}, at(4, TypeSpec{Kind: String}, "string")},
		{
			"+8(%di):u8[16]", "arg1",
			Expr{Kind: ExprDeref, Off: 8, Sub: &Expr{Kind: ExprReg, Name: "di", Pos: 3}},
			at(8, TypeSpec{Kind: Unsigned, Size: 1, Count: 16}, "u8[16]"),
		},
		{"-0x8(+u4($arg1)):ustring[64]", "arg1", Expr{Kind: ExprDeref, Off: -8, Sub: &Expr{
			Kind: ExprDeref, Off: 4, User: true, Pos: 5, Sub: &Expr{Kind: ExprArg, Num: 1, Pos: 9},
		}}, at(17, TypeSpec{Kind: UString, Count: 64}, "ustring[64]")},
		{
			"+-8(%di):u8[+2]", "arg1",
			Expr{Kind: ExprDeref, Off: -8, Sub: &Expr{Kind: ExprReg, Name: "di", Pos: 4}},
			at(9, TypeSpec{Kind: Unsigned, Size: 1, Count: 2}, "u8[+2]"),
		},
		{"++8(%di)", "arg1", Expr{Kind: ExprDeref, Off: 8, Sub: &Expr{Kind: ExprReg, Name: "di", Pos: 4}}, hex},
		{`+0(@"f)":u8`, "", Expr{}, TypeSpec{}},
		{
			`+0(@"f)"):u8`, "arg1",
			Expr{Kind: ExprDeref, Sub: &Expr{Kind: ExprSymbol, Name: "f)", Pos: 3}},
			at(10, TypeSpec{Kind: Unsigned, Size: 1}, "u8"),
		},
		{"%ax:b4@8/16", "arg1", Expr{Kind: ExprReg, Name: "ax"}, at(4, TypeSpec{Kind: Bits, Size: 2, Width: 4, Shift: 8}, "b4@8/16")},
		{"%ax:b64@0/64", "arg1", Expr{Kind: ExprReg, Name: "ax"}, at(4, TypeSpec{Kind: Bits, Size: 8, Width: 64}, "b64@0/64")},
		{"%ax:char", "arg1", Expr{Kind: ExprReg, Name: "ax"}, at(4, TypeSpec{Kind: Char, Size: 1}, "char")},
		{"%ip:symbol", "arg1", Expr{Kind: ExprReg, Name: "ip"}, at(4, TypeSpec{Kind: Symbol, Size: 8}, "symbol")},
		{"%ip:symstr", "arg1", Expr{Kind: ExprReg, Name: "ip"}, at(4, TypeSpec{Kind: SymStr, Size: 8}, "symstr")},
		{"$arg1:gostring", "arg1", Expr{Kind: ExprArg, Num: 1}, at(6, TypeSpec{Kind: GoString}, "gostring")},
		{"+0(%ax):gostring", "arg1", Expr{Kind: ExprDeref, Sub: &Expr{Kind: ExprReg, Name: "ax", Pos: 3}}, at(8, TypeSpec{Kind: GoString}, "gostring")},
		{"file", "file", Expr{Kind: ExprName, Name: "file"}, hex},
		{"file->f_pos.x:u32", "arg1", Expr{Kind: ExprName, Name: "file->f_pos.x"}, at(14, TypeSpec{Kind: Unsigned, Size: 4}, "u32")},
		{"count:u32", "count", Expr{Kind: ExprName, Name: "count"}, at(6, TypeSpec{Kind: Unsigned, Size: 4}, "u32")},
		{"$arg*", "arg1", Expr{Kind: ExprAllArgs}, hex},
		{"$vars", "arg1", Expr{Kind: ExprAllVars}, hex},
	} {
		d, err := Parse("r f " + c.in)
		if c.name == "" {
			if err == nil {
				t.Errorf("%s: taken", c.in)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		a := d.Args[0]
		shift(a.Expr, -4)
		a.Type.Pos -= 4
		if a.Name != c.name || a.Pos != 4 || !strings.HasSuffix(c.in, a.Text) {
			t.Errorf("%s: name %q, text %q, position %d", c.in, a.Name, a.Text, a.Pos)
		}
		if diff := cmp.Diff(&c.expr, a.Expr); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.in, diff)
		}
		if diff := cmp.Diff(c.ty, a.Type); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.in, diff)
		}
	}
}

func shift(e *Expr, n int) {
	for ; e != nil; e = e.Sub {
		e.Pos += n
	}
}

func TestDeletes(t *testing.T) {
	d := mustParse(t, "p:grp/ev vfs_read+8 %di b=+0(%si):string")
	for in, want := range map[string]bool{
		"-:ev":                               true,
		"-:grp/ev":                           true,
		"-:grp/":                             true,
		"-:other":                            false,
		"-:other/ev":                         false,
		"-:ev vfs_read+8":                    true,
		"-:ev vfs_read+0x8":                  true,
		"-:ev vfs_read":                      false,
		"-:ev vfs_read+8 arg1=%di":           true,
		"-:ev vfs_read+8 arg1=%si":           false,
		"-:ev vfs_read+8 arg1=%di b=+0(%si)": false,
		"-:ev vfs_read+8 arg1=%di b=+0(%si):string":   true,
		"-:ev vfs_read+8 arg1=%di b=+0(%si):string c": false,
		"-:ev vfs+read+x": false,
		"p:ev vfs_read+8": false,
	} {
		if got := mustParse(t, in).Deletes(d); got != want {
			t.Errorf("%s: %v", in, got)
		}
	}
}

func TestAppends(t *testing.T) {
	old := mustParse(t, "p:ev f a=%di b=+0(%si):string")
	for _, c := range []struct {
		in   string
		code Code
	}{
		{"^r:ev g a=%di b=+0(%si):string", DiffProbeType},
		{"^f:ev g a=$arg1 b=+0($arg2):string", DiffProbeType},
		{"p:ev g ^c=%di b=+0(%si):string", DiffArgType},
		{"p:ev g a=%di ^b=+0(%si):u8", DiffArgType},
		{"p:ev g a=%di ^b=+0(%si):string[2]", DiffArgType},
		{"p:ev g a=%di ^", DiffArgType},
		{"p:ev g a=%di b=+0(%si):string ^c=%dx", DiffArgType},
		{"^p:ev f a=%di b=+0(%si):string", SameProbe},
		{"^p:ev f+0 a=%di b=+0(%si):string", SameProbe},
	} {
		pos := strings.IndexByte(c.in, '^')
		err := mustParse(t, strings.Replace(c.in, "^", "", 1)).Appends(old)
		e, ok := err.(*Error)
		if !ok || e.Code != c.code || e.Pos != pos {
			t.Errorf("%s: %+v", c.in, err)
		}
	}
	bits := mustParse(t, "p:ev f a=%di:b1@0/8")
	for in, ok := range map[string]bool{"b2@1/8": true, "u8": true, "b1@0/16": false, "s8": false, "x8": false} {
		if err := mustParse(t, "p:ev g a=%di:"+in).Appends(bits); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
	for _, ok := range []string{"p:ev g a=%di b=+0(%si):string", "p:ev f a=%di b=+0(%dx):string", "p:ev f a=%si:x64 b=+0(%si):string"} {
		if err := mustParse(t, ok).Appends(old); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
}

// FuzzParse checks that nothing panics, that errors point into their command, and that
// what is printed reads back as the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"p:grp/ev libc.so.6:malloc+4 n=%di:u64 +8(%si):string[3]", "r100 main.(*T).M $retval $arg1:gostring",
		`p "operator new(unsigned long)"+4 \"x" \-5 @"a b"-4:b1@2/8`, "-:grp/ev f a=%di", "p /bin/ls:0x10(0x3)", "p a.go:10",
		"p vfs_[rw]*%return $arg* file->x.y", "p f $comm $stack3 @0x10:symbol", "p a:::b\"c d\" +u-8(@", `p "a"b`, "r f+4 this_cpu_read(x)",
		"w:g/e w@lib.so:s-8:4 a=$addr %di:u8", `w x@"a b"+4`, "w @0x4010:8 $stack", "w rw@ns::v:2", "f:g/e vfs_[rw]* $arg*", "f9 f%return $retval",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		d, err := Parse(line)
		if err != nil {
			e := err.(*Error)
			if e.Pos < 0 || e.Pos > len(e.Cmd)+1 || e.Error() == "" || e.Detail() == "" {
				t.Fatalf("%q: %+v", line, e)
			}
			return
		}
		if d == nil {
			return
		}
		text := d.String()
		again, err := Parse(text)
		if both := func(s string) bool { return strings.Contains(s, `"`) && strings.Contains(s, "'") }; len(text) > maxLine || both(d.Place.Symbol) || both(d.Place.Module) || both(d.Place.Path) {
			return // there are no quotes for a name that has both
		}
		if err != nil {
			t.Fatalf("%q: printed %q: %v", line, text, err)
		}
		if got := again.String(); got != text {
			t.Fatalf("%q: printed %q, then %q", line, text, got)
		}
		compareDefs(t, line, d, again)
	})
}

func compareDefs(t *testing.T, line string, d, again *Def) {
	t.Helper()
	if !d.Place.same(again.Place) || d.Watched != again.Watched || d.Kind != again.Kind || d.MaxActive != again.MaxActive || d.Group != again.Group {
		t.Fatalf("%q: %+v, read back %+v", line, d, again)
	}
	for i := range d.Args {
		if !d.Args[i].sameType(&again.Args[i]) || d.Args[i].Text != again.Args[i].Text {
			t.Fatalf("%q: argument %d: %+v, read back %+v", line, i, d.Args[i], again.Args[i])
		}
	}
}
