package event

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
)

var long = strings.Repeat("x", 64)

// TestErrors parses bad definitions; the ^ stands where the caret belongs.
func TestErrors(t *testing.T) {
	many := strings.Repeat(" %di", 128)
	for _, c := range []struct {
		in   string
		code Code
	}{
		// The first word.
		{"^q vfs_read", BadCommand},
		{"^:foo vfs_read", BadCommand},
		{"^t:foo vfs_read", BadCommand},
		{"f:foo ^vfs_read+5", BadProbeAddr},
		{"f:foo ^0x1234", BadProbeAddr},
		{"f:foo ^libc.so.6:0x1234", BadProbeAddr},
		{"f^5:foo vfs_read", BadMaxactType},
		{"f^x:foo vfs_read%return", BadMaxact},
		{"f:foo vfs_read ^%ax", BadVar},
		{"f:foo vfs_read x=+0(^%di)", BadVar},
		{"f:foo vfs_read^%ret", BadAddrSuffix},
		{"f:foo vfs_read ^$retval2", BadVar},
		{"^!p:foo vfs_read", BadCommand},
		{"p^foo vfs_read", BadCommand},
		{"p ^", NoPlace},
		{"r:foo/bar ^", NoPlace},
		{"p^100 vfs_read", BadMaxactType},
		{"p^1:foo vfs_read", BadMaxactType},
		{"r^1a111 vfs_read", BadMaxact},
		{"r^-1 vfs_read", BadMaxact},
		{"r^abc:foo vfs_read", BadMaxact},
		{"r^99999999999999999999 vfs_read", BadMaxact},
		{"r^4294967296 vfs_read", BadMaxact},
		{"r^100000 vfs_read", MaxactTooBig},
		{"r^4097:foo vfs_read", MaxactTooBig},
		{"^p vfs\x01read", BadByte},

		// Places.
		{"p ^hoge+1000-1000", BadProbeAddr},
		{"p ^hoge+12ab", BadProbeAddr},
		{"p ^hoge+foo", BadProbeAddr},
		{"p ^hoge+", BadProbeAddr},
		{"p ^++10", BadProbeAddr},
		{"r^+1 vfs_read", BadMaxact},
		{"p ^vfs_read-10", BadProbeAddr},
		{"p ^vfs_read+4294967296", BadProbeAddr},
		{"p ^12zz", BadProbeAddr},
		{"p ^0x", BadProbeAddr},
		{"p ^0x10000000000000000", BadProbeAddr},
		{"p ^:vfs_read", BadProbeAddr},
		{"p ^libc.so.6:", BadProbeAddr},
		{`p ^"":vfs_read`, BadProbeAddr},
		{`p ^""`, BadProbeAddr},
		{`p mod:^""`, BadProbeAddr},
		{`p ^"vfs_read`, BadProbeAddr},
		{`p mod:^"vfs "*`, BadProbeAddr},
		{"p mod:^a:b*", BadProbeAddr},
		{`p vfs^"_read`, BadProbeAddr},
		{"p ^%return", BadProbeAddr},
		{"p vfs_read^%ret", BadAddrSuffix},
		{"p vfs_read^%return2", BadAddrSuffix},
		{"p:foo/bar vfs_read^%", BadAddrSuffix},
		{"p /bin/ls:^0xzz", BadUprobeOffs},
		{"p /bin/ls:^12a", BadUprobeOffs},
		{"p /bin/ls:0x1000^(0x20)", BadRefcnt},
		{"p main.go:^99999999999", BadProbeAddr},

		// Names.
		{"p:^ vfs_read", NoEventName},
		{"p:^/bar vfs_read", NoGroupName},
		{"p:^.bar vfs_read", NoGroupName},
		{"p:^" + long + "/bar vfs_read", GroupTooLong},
		{"p:^foo.1/bar vfs_read", BadGroupName},
		{"p:^1foo/bar vfs_read", BadGroupName},
		{"p:foo/^" + long + " vfs_read", EventTooLong},
		{"p:foo/^bar.1 vfs_read", BadEventName},
		{"p:^1bar vfs_read", BadEventName},
		{"r10:foo.^bar-1 vfs_read", BadEventName},
		{"p:^foo:bar vfs_read", BadEventName},

		// Deletions.
		{"-^", BadCommand},
		{"-^foo", BadCommand},
		{"-^1:foo", BadCommand},
		{"-:^", NoEventName},
		{"-:^/foo", NoGroupName},
		{"-:foo/^b-r", BadEventName},

		// Variables.
		{"p vfs_read ^$retval", RetvalOnProbe},
		{"p vfs_read a=^$retval:u32", RetvalOnProbe},
		{"p vfs_read +0(^$retval)", RetvalOnProbe},
		{"p vfs_read ^$retval->f_pos", RetvalOnProbe},
		{"r vfs_read $retval^-f_pos", BadHyphen},
		{"r vfs_read ^$retvals", BadVar},
		{"p vfs_read n=count:^b33@0/32", BadBitfield},
		{"p vfs_read ^$duration", BadVar},
		{"p vfs_read x=^$duration:u32", BadVar},
		{"r vfs_read x=^$durations", BadVar},
		{"r vfs_read +0(^$duration)", BadFetchArg},
		{"r vfs_read x=$duration:^symstr", BadType},
		{"r vfs_read x=$duration:^string", BadString},
		{"r vfs_read x=$duration:^u8[4]", BadString},
		{"r vfs_read x=$duration:^gostring", BadString},
		{"p vfs_read ^$stack10000", BadStackNum},
		{"p vfs_read ^$stack2049", BadStackNum},
		{"p vfs_read ^$stack99999999999999999999", BadVar},
		{"p vfs_read ^$arg99999999999999999999", BadVar},
		{"p vfs_read ^$stackp", BadVar},
		{"p vfs_read ^$stack1x", BadVar},
		{"p vfs_read ^$arg10000", BadArgNum},
		{"p vfs_read ^$arg0", BadArgNum},
		{"p vfs_read ^$arg", BadVar},
		{"p vfs_read ^$argx", BadVar},
		{"p vfs_read ^$none_var", BadVar},
		{"p vfs_read ^$", BadVar},
		{"p vfs_read ^$current", BadVar},
		{"p vfs_read args=^$arg*", BadVar},
		{"p vfs_read +0(^$arg*)", BadVar},
		{"p vfs_read ^$arg*:u32", BadVar},
		{"p vfs_read $arg* ^$arg*", DoubleArgs},
		{"p vfs_read v=^$vars", BadVar},
		{"p vfs_read ^$vars:u32", BadVar},
		{"p vfs_read $vars ^$vars", DoubleArgs},
		{"p vfs_read +0(^$vars)", BadVar},
		{"p vfs_read ^this_cpu_read(@foo)", NosupPercpu},
		{"p vfs_read (file)$arg1^", TypecastReqField},
		{"p vfs_read (file$arg1->f_pos^", DerefOpenBrace},
		{"p vfs_read ^()$arg1->f_pos", BadFetchArg},
		{"p vfs_read ^(1x)$arg1->f_pos", BadFetchArg},
		{"p vfs_read ^(file,)$arg1->f_pos", BadFetchArg},
		{"p vfs_read (file,^f_path->mnt)$arg1->f_pos", TypecastBadArrow},
		{"p vfs_read (file)^@sym+8->f_pos", TypecastSymOffset},
		{"p vfs_read (file)^->f_pos", BadFetchArg},
		{"p vfs_read (file)((a)%di^)->f_pos", TypecastReqField},
		{"p vfs_read (file)^$comm->f_pos", CommCantDeref},
		{"p vfs_read (file)$arg1->f_pos^-x", BadHyphen},

		// Registers, memory, immediates.
		{"p vfs_read ^%", BadRegName},
		{"p vfs_read ^%a-x", BadRegName},
		{"p vfs_read ^@12345678abcde", BadMemAddr},
		{"p vfs_read ^@", BadMemAddr},
		{"p vfs_read ^@SYM*10", BadMemAddr},
		{"p vfs_read ^@SYM+1z", BadMemAddr},
		{"p vfs_read ^@SYM+", BadMemAddr},
		{"p vfs_read ^@+10", FileOnKprobe},
		{"p vfs_read a=^@+0x10:u32", FileOnKprobe},
		{`p vfs_read \^x`, BadImm},
		{`p vfs_read \^`, BadImm},
		{`p vfs_read \^12a`, BadImm},
		{`p vfs_read \^--5`, BadImm},
		{`p vfs_read \^-+5`, BadImm},
		{`p vfs_read \^+++5`, BadImm},
		{`p vfs_read \^+9223372036854775808`, BadImm},
		{`p vfs_read a=\^0x:u8`, BadImm},
		{`p vfs_read \"foo^`, ImmstrNoClose},
		{`p vfs_read a=\"^`, ImmstrNoClose},
		{`p vfs_read \"a^ b"`, ImmstrNoClose},
		{"p vfs_read ^&1", BadFetchArg},
		{"p vfs_read ^1", BadFetchArg},
		{"p vfs_read ^:u32", BadFetchArg},
		{"p vfs_read file^-.foo", BadHyphen},
		{"p vfs_read file^-foo", BadHyphen},

		// Dereferences.
		{"p vfs_read ^+0@0)", DerefNeedBrace},
		{"p vfs_read ^+0", DerefNeedBrace},
		{"p vfs_read ^+0ab1(@0)", BadDerefOffs},
		{"p vfs_read ^+(@0)", BadDerefOffs},
		{"p vfs_read ^+u(@0)", BadDerefOffs},
		{"p vfs_read ^+--5(@0)", BadDerefOffs},
		{"p vfs_read ^--5(@0)", BadDerefOffs},
		{"p vfs_read ^-+5(@0)", BadDerefOffs},
		{"p vfs_read ^+++5(@0)", BadDerefOffs},
		{"p vfs_read ^-0x8000000000000001(@0)", BadDerefOffs},
		{"p vfs_read +0(+0(@0^)", DerefOpenBrace},
		{"p vfs_read +u0(@0^", DerefOpenBrace},
		{"p vfs_read +0(@0)^x", BadFetchArg},
		{"p vfs_read +0(^)", BadFetchArg},
		{"p vfs_read +0(^$comm)", CommCantDeref},
		{`p vfs_read +0(^\"abc")`, CommCantDeref},
		{"p vfs_read +8(+0(^&))", BadFetchArg},
		{"p vfs_read +0(^+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@0))))))))))))))", TooManyOps},

		// Types.
		{"p vfs_read +0(@11):u8[10^", ArrayNoClose},
		{"p vfs_read +0(@11):u8[10]^a", BadArraySuffix},
		{"p vfs_read +0(@11):u8[^10a]", BadArrayNum},
		{"p vfs_read +0(@11):u8[^]", BadArrayNum},
		{"p vfs_read +0(@11):u8[^0]", BadArrayNum},
		{"p vfs_read +0(@11):u8[^-1]", BadArrayNum},
		{"p vfs_read +0(@11):u8[^256]", ArrayTooBig},
		{"p vfs_read +0(@11):string[^65]", ArrayTooBig},
		{"p vfs_read %ax:^u8[2]", BadString},
		{`p vfs_read \1:^u8[2]`, BadString},
		{"p vfs_read $arg1:^string[2]", BadString},
		{"p vfs_read @11:^unknown_type", BadType},
		{"p vfs_read @11:^", BadType},
		{"p vfs_read @11:^u24", BadType},
		{"p vfs_read @11:^b1@0/24", BadType},
		{"p vfs_read @11:^b1@0", BadType},
		{"p vfs_read %di:^%pd", BadType},
		{"p vfs_read @11:^gostring[2]", BadType},
		{"p vfs_read $stack0:^string", BadString},
		{"p vfs_read %ax:^string", BadString},
		{"p vfs_read %ax:^ustring", BadString},
		{"p vfs_read %ax:^gostring", BadString},
		{`p vfs_read \1:^gostring`, BadString},
		{`p vfs_read \1:^symstr`, BadSymstring},
		{"p vfs_read @11:^b10@a/16", BadBitfield},
		{"p vfs_read @11:^b0@0/8", BadBitfield},
		{"p vfs_read @11:^b8@4/8", BadBitfield},
		{"p vfs_read @11:^b@1/8", BadBitfield},
		{"p vfs_read @11:^b1@/8", BadBitfield},
		{"p vfs_read @11:^b1@0xffffffffffffffff/64", BadBitfield},
		{"p vfs_read $comm:^u32", NeedStringType},
		{"p vfs_read $comm:^string[2]", NeedStringType},
		{`p vfs_read \"abc":^u8`, NeedStringType},

		// Arguments.
		{"p vfs_read ^arg123456789012345678901234567890=@11", ArgNameTooLong},
		{"p vfs_read ^=@11", NoArgName},
		{"p vfs_read ^var.1=@11", BadArgName},
		{"p vfs_read ^1a=@11", BadArgName},
		{"p vfs_read var1=@11 ^var1=@12", UsedArgName},
		{"p vfs_read arg2=@11 ^%di", UsedArgName},
		{"p vfs_read ^common_pid=%di", UsedArgName},
		{"p vfs_read ^__probe_ip=%di", UsedArgName},
		{"p vfs_read ^+1234567(+1234567(+1234567(+1234567(+1234567(+1234567(@1234))))))", ArgTooLong},
		{"p vfs_read arg1=^", NoArgBody},
		{"p vfs_read a=%di  b=^   c=%si", NoArgBody},
		{"p vfs_read ^%si" + many, TooManyArgs},
	} {
		check(t, c.in, c.code)
	}
}

// check parses in without its ^ and compares code, command and column.
func check(t *testing.T, in string, code Code) {
	t.Helper()
	before, after, ok := strings.Cut(in, "^")
	if !ok {
		t.Fatalf("%q has no caret", in)
	}
	cmd, _ := split(before + after)
	pos := len(strings.Join(strings.Fields(before), " "))
	if strings.HasSuffix(before, " ") {
		pos++
	}
	d, err := Parse(before + after)
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v, %v", in, d, err)
		return
	}
	if e.Code != code || e.Pos != pos {
		t.Errorf("%s: got %v at %d, want %v at %d", in, e.Code, e.Pos, code, pos)
	}
	if e.Code != BadByte && e.Cmd != cmd {
		t.Errorf("%s: command %q, want %q", in, e.Cmd, cmd)
	}
	want := strings.Repeat(" ", 11+pos) + "^"
	lines := strings.Split(e.Detail(), "\n")
	if len(lines) != 4 || lines[2] != want || lines[1] != "  Command: "+e.Cmd {
		t.Errorf("%s: detail %q", in, e.Detail())
	}
}

// TestTooManyOps meets the limit of instructions at what is added behind the
// dereferences.
func TestTooManyOps(t *testing.T) {
	nest := func(n int, in string) string { return strings.Repeat("+0(", n) + in + strings.Repeat(")", n) }
	for _, c := range []struct {
		arg string
		ok  bool
	}{
		{nest(13, "@0"), true},
		{nest(14, "%r8"), true},
		{nest(14, "@0"), false},
		{nest(12, "@s"), true},
		{nest(13, "@s"), false},
		{nest(11, "@s") + ":u8[1]", true},
		{nest(12, "@s") + ":u8[1]", false},
		{nest(12, "@s") + ":symbol", true},
		{nest(10, "@s") + ":string[2]", true},
		{nest(11, "@s") + ":string[2]", false},
		{nest(11, "@s") + ":b1@0/8", true},
		{nest(12, "@s") + ":b1@0/8", false},
	} {
		_, err := Parse("p f " + c.arg)
		if c.ok != (err == nil) || err != nil && !HasCode(err, TooManyOps) {
			t.Errorf("%s: %v", c.arg, err)
		}
	}
}

func TestErrno(t *testing.T) {
	for _, c := range []struct {
		in string
		no syscall.Errno
	}{
		{"p f ^", syscall.EINVAL},
		{"p f" + strings.Repeat(" %di", 129), syscall.E2BIG},
		{"p f " + strings.Repeat("+1234567(", 7) + "@1" + strings.Repeat(")", 7), syscall.E2BIG},
		{"p f file-x", syscall.EINVAL},
		{"p f @0x10000000000000000", syscall.ERANGE},
		{"p f +0x8000000000000000(%di)", syscall.ERANGE},
		{`p f \-9223372036854775809`, syscall.ERANGE},
		{"p " + strings.Repeat("f", maxLine), syscall.EINVAL},
	} {
		_, err := Parse(c.in)
		if !errors.Is(err, c.no) {
			t.Errorf("%.40s: %v is not %v", c.in, err, c.no)
		}
	}
	if errors.Is(&Error{Code: SameProbe}, syscall.EINVAL) || !errors.Is(&Error{Code: SameProbe}, syscall.EEXIST) {
		t.Error("SAME_PROBE is not EEXIST alone")
	}
	if !errors.Is(&Error{Code: BadInsnBndry}, syscall.EILSEQ) {
		t.Error("BAD_INSN_BNDRY is not EILSEQ")
	}
	if !errors.Is(&Error{Code: BadProbeAddr, Err: syscall.ENOENT}, syscall.ENOENT) {
		t.Error("the cause is not seen")
	}
}

// TestTable checks that every code has its row, under its own name.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for c := range numCodes {
		n := c.String()
		if n == "" || c.Text() == "" || seen[n] {
			t.Errorf("code %d: name %q, text %q", c, n, c.Text())
		}
		seen[n] = true
	}
	if got := int(TooManyEargs) + 1; got != 80 {
		t.Errorf("%d codes of Linux 6.18, want 80", got)
	}
	if Code(250).String() != "UNKNOWN" || Code(250).Errno() != syscall.EINVAL {
		t.Error("a code outside the table")
	}
}

func TestDetail(t *testing.T) {
	_, err := Parse("  p:foo/bar   vfs_read  var1=@11   var1=@12 # twice")
	var e *Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	want := "trace_kprobe: error: This argument name is already used\n" +
		"  Command: p:foo/bar vfs_read var1=@11 var1=@12\n" +
		"                                       ^\n"
	if e.Detail() != want {
		t.Errorf("got\n%swant\n%s", e.Detail(), want)
	}
	if got, want := err.Error(), "column 29: This argument name is already used: another argument is called var1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err = Parse("p main.(*T)·größe $foo")
	if !errors.As(err, &e) || e.column() != 18 || e.Pos != 21 {
		t.Errorf("columns count bytes: %+v", e)
	}
}

func TestParseFile(t *testing.T) {
	in := "# probes\n\np:a f\np g $foo\r\n" + "p " + strings.Repeat("x", 5000) + "\n" +
		strings.Repeat(" ", maxLine-4) + "p h\n" + "p i ^\n-:a\nr j"
	defs, errs := ParseFile(strings.NewReader(in))
	var got []string
	for _, d := range defs {
		got = append(got, d.String())
	}
	want := "p:kprobes/a f|p:kprobes/p_h_0 h|-:a|r:kprobes/r_j_0 j"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got %s", s)
	}
	if lines := [4]int{defs[0].Line, defs[1].Line, defs[2].Line, defs[3].Line}; lines != [4]int{3, 6, 8, 9} {
		t.Errorf("lines %v", lines)
	}
	for i, w := range []struct {
		line int
		code Code
	}{{4, BadVar}, {5, LineTooLong}, {7, BadFetchArg}} {
		var e *Error
		if i >= len(errs) || !errors.As(errs[i], &e) || e.Line != w.line || e.Code != w.code {
			t.Errorf("error %d: %v, want %v in line %d", i, errs, w.code, w.line)
		}
	}
	if len(errs) != 3 {
		t.Errorf("%d errors: %v", len(errs), errs)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestParseFileFails(t *testing.T) {
	defs, errs := ParseFile(io.MultiReader(strings.NewReader("p f\n"), failing{}))
	if len(defs) != 1 || len(errs) != 1 || !errors.Is(errs[0], io.ErrUnexpectedEOF) || !HasCode(errs[0], ReadFailed) {
		t.Errorf("%v, %v", defs, errs)
	}
	_, errs = ParseFile(strings.NewReader(strings.Repeat("\n", maxLines+1)))
	if len(errs) != 1 || !HasCode(errs[0], TooManyLines) {
		t.Errorf("%v", errs)
	}
}

// A deletion begins its line; other definitions may be indented.
func TestIndented(t *testing.T) {
	for _, in := range []string{" -:a", "\t-:g/", "  - "} {
		var bad *Error
		if d, err := Parse(in); !errors.As(err, &bad) || bad.Code != BadCommand || bad.Pos != 0 {
			t.Errorf("%q: %v, %v", in, d, err)
		}
	}
	for _, in := range []string{"-:a", "-:a ", " p:a vfs_read", "\tr vfs_read"} {
		if d, err := Parse(in); d == nil || err != nil {
			t.Errorf("%q: %v, %v", in, d, err)
		}
	}
}
