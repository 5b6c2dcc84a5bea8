package event

import (
	"slices"
	"strings"
	"testing"
)

func TestParseWatch(t *testing.T) {
	for _, c := range []struct {
		in, print string
		place     Place
		watched   Watched
	}{
		{"w @jiffies", "w:wprobes/w_jiffies_0 rw@jiffies", Place{Symbol: "jiffies", Pos: 3}, Watched{}},
		{"w:my_jiffies w@jiffies:8", "w:wprobes/my_jiffies w@jiffies:8", Place{Symbol: "jiffies", Pos: 15}, Watched{Write, 8}},
		{"w:g/e rw@s+0x10:4 a=$addr", "w:g/e rw@s+16:4 a=$addr", Place{Symbol: "s", Offset: 16, Pos: 9}, Watched{ReadWrite, 4}},
		{"w @s-8:2", "w:wprobes/w_s__8 rw@s-8:2", Place{Symbol: "s", Offset: ^uint64(7), Pos: 3}, Watched{ReadWrite, 2}},
		{"w w@0x4010:1", "w:wprobes/w_0x4010 w@0x4010:1", Place{Kind: PlaceAddr, Addr: 0x4010, Pos: 4}, Watched{Write, 1}},
		{"w @4010", "w:wprobes/w_0xfaa rw@0xfaa", Place{Kind: PlaceAddr, Addr: 4010, Pos: 3}, Watched{}},
		{"w @lib.so:0x4010", "w:wprobes/w_lib_so_0x4010 rw@lib.so:0x4010", Place{Kind: PlaceAddr, Module: "lib.so", Addr: 0x4010, Pos: 3}, Watched{}},
		{"w @libc.so.6:environ:8", "w:wprobes/w_libc_so_6_environ_0 rw@libc.so.6:environ:8", Place{Module: "libc.so.6", Symbol: "environ", Pos: 3}, Watched{ReadWrite, 8}},
		{"w @ns::v", "w:wprobes/w_ns__v_0 rw@ns::v", Place{Symbol: "ns::v", Pos: 3}, Watched{}},
		{"w @ns::v:4", "w:wprobes/w_ns__v_0 rw@ns::v:4", Place{Symbol: "ns::v", Pos: 3}, Watched{ReadWrite, 4}},
		{"w @main.count", "w:wprobes/w_main_count_0 rw@main.count", Place{Symbol: "main.count", Pos: 3}, Watched{}},
		{`w w@"a b":4`, `w:wprobes/w_a_b_0 w@"a b":4`, Place{Symbol: "a b", Pos: 4}, Watched{Write, 4}},
		{"w x@main+4 n=%di", "w:wprobes/w_main_4 x@main+4 n=%di", Place{Symbol: "main", Offset: 4, Pos: 4}, Watched{Execute, 0}},
		{"w x@main:8 $stack", "w:wprobes/w_main_0 x@main:8 arg1=$stack", Place{Symbol: "main", Pos: 4}, Watched{Execute, 8}},
		{`w @s a=\5 b=\"x" c=%flags:b3@2/16 d=%ax:symbol e=$addr:u16`, `w:wprobes/w_s_0 rw@s a=\5 b=\"x" c=%flags:b3@2/16 d=%ax:symbol e=$addr:u16`, Place{Symbol: "s", Pos: 3}, Watched{}},
	} {
		d := mustParse(t, c.in)
		if d.Kind != Watch || d.Place != c.place || d.Watched != c.watched || d.String() != c.print {
			t.Errorf("%s: %v, %+v, %+v: %s", c.in, d.Kind, d.Place, d.Watched, d)
		}
		if again := mustParse(t, d.String()); again.String() != c.print {
			t.Errorf("%s is read back as %s", c.print, again)
		}
	}
}

func TestWatchErrors(t *testing.T) {
	for _, c := range []struct {
		in   string
		code Code
	}{
		{"w^4 @s", BadMaxactType},
		{"w^foo @s", BadCommand},
		{"w:foo ^", NoPlace},
		{"w:foo ^s", BadProbeAddr},
		{"w:foo ^r@0x100:4", BadProbeAddr},
		{"w:foo ^wr@s", BadProbeAddr},
		{"w:foo ^W@s", BadProbeAddr},
		{"w:foo @^", BadProbeAddr},
		{"w:foo w@^:8", BadProbeAddr},
		{"w:foo w@s^:", BadProbeAddr},
		{"w:foo w@s:^3", BadProbeAddr},
		{"w:foo w@s:^16", BadProbeAddr},
		{"w:foo w@s:^08", BadProbeAddr},
		{"w:foo x@s:^4", BadProbeAddr},
		{"w:foo w@^:s:8", BadProbeAddr},
		{"w:foo w@s*:^9", BadProbeAddr},
		{"w:foo w@^s*", BadProbeAddr},
		{"w:foo w@^s+1+8", BadProbeAddr},
		{"w:foo w@s^+0x1ffffffff", BadProbeAddr},
		{"w:foo w@s^%return", BadAddrSuffix},
		{`w:foo w@^"s`, BadProbeAddr},
		{"w:^1 @s", BadEventName},
		{"w @s ^$arg1", BadVar},
		{"w @s ^$arg*", BadVar},
		{"w @s ^$retval", BadVar},
		{"w @s ^$stack0", BadVar},
		{"w @s ^$comm", BadVar},
		{"w @s ^$duration", BadVar},
		{"w @s ^$addrs", BadVar},
		{"w @s a=^+8(%di):u32", BadFetchArg},
		{"w @s a=^-8($addr)", BadFetchArg},
		{"w @s ^@s", BadFetchArg},
		{"w @s ^@0x100", BadFetchArg},
		{"w @s ^count", NosupBTFArg},
		{"w @s a=^(t)$addr->x", NosupBTFArg},
		{"w @s %di:^string", BadString},
		{"w @s %di:^u8[4]", BadString},
		{"w @s %di:^gostring", BadString},
		{"w @s ^%a-x", BadRegName},
		{"p f ^$addr", BadVar},
		{"r f ^$addr", BadVar},
		{"p f +8(^$addr)", BadVar},
	} {
		check(t, c.in, c.code)
	}
}

// A kernel judges what it is told to watch, and what to record.
func TestWatchKernel(t *testing.T) {
	for _, text := range []string{"w:e r@jiffies:8 $addr x=+0($addr) $comm", "w rw@jiffies"} {
		if d, err := (Parser{Kernel: true}).Parse(text); err != nil || d.Text != text || d.Kind != Watch {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
}

// A deletion finds a watchpoint by what it watches, and another definition under its name must differ in that.
func TestWatchDeletes(t *testing.T) {
	def := mustParse(t, "w:e w@s+8:4 %di")
	for text, want := range map[string]bool{
		"-:e": true, "-:wprobes/e": true, "-:kprobes/e": false, "-:e w@s+0x8:4": true, "-:e rw@s+8:4": false, "-:e w@s+8:8": false, "-:e w@s:4": false,
		"-:e s+8": false, "-:e w@s+8:4 arg1=%di": true,
	} {
		if d := mustParse(t, text); d.Deletes(def) != want {
			t.Errorf("%s deletes %s: %v", text, def, !want)
		}
	}
	for text, code := range map[string]Code{
		"w:e w@s+8:4 %di": SameProbe, "w:e rw@s+8:4 %di": numCodes, "w:e w@s+8:8 %di": numCodes, "w:e w@s:4 %di": numCodes, "p:wprobes/e s+8 %di": DiffProbeType,
	} {
		if err := mustParse(t, text).Appends(def); code == numCodes && err != nil || code != numCodes && !HasCode(err, code) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The words of an error say what to write in place of what is wrong.
func TestWatchMessages(t *testing.T) {
	for text, words := range map[string][]string{
		"w r@s":            {"reads alone", "rw"},
		"w s":              {"@SYMBOL"},
		"w @s x=+8(%di)":   {"%REG", "$stack", "$addr", "(p)"},
		"w @s $arg1":       {"register"},
		"w @s $comm":       {"thread's name"},
		"w @s:3":           {"1, 2, 4 or 8", "0x"},
		"w x@s:4":          {"no length"},
		"w @s*":            {"no pattern"},
		"p f $addr":        {"watchpoint"},
		"w @s x=%di:u8[4]": {"no memory"},
	} {
		_, err := Parse(text)
		if err == nil || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(err.Error(), w) }) {
			t.Errorf("%s: %v, want the words %q", text, err, words)
		}
	}
}
