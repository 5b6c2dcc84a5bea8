package event

import (
	"strings"
	"testing"
)

// A kernel judges expressions and types itself; all else is the same for all targets.
func TestParserKernel(t *testing.T) {
	k := Parser{Kernel: true}
	for _, text := range []string{
		"p vfs_read name=$arg1:%pd", "p vfs_read file=$arg1:%pD n=%di:u32", "p vfs_read file->f_inode",
		"p vfs_read ino=(inode)$arg1->i_ino", "p vfs_read x=%di:not_a_type", "r vfs_read $retval->x:%pd",
	} {
		if d, err := Parse(text); err == nil && !strings.Contains(text, "->f_inode") && !strings.Contains(text, "->i_ino") {
			t.Errorf("%s: a program takes it: %+v", text, d)
		}
		d, err := k.Parse(text)
		if err != nil || d.Text != text || len(d.Args) == 0 {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
	for _, text := range []string{"p vfs_read a=%di a=%si", "q vfs_read", "p", "p:1a vfs_read"} {
		if d, err := k.Parse(text); err == nil {
			t.Errorf("%s: %+v", text, d)
		}
	}
	defs, errs := k.ParseFile(strings.NewReader("p vfs_read a=$arg1:%pd\n# x\nq bad\np vfs_write\n"))
	if len(defs) != 2 || len(errs) != 1 {
		t.Errorf("%v, %v", defs, errs)
	}
}

// Single quotes stand around a name as double ones do; within a name they belong to it.
func TestSingleQuotes(t *testing.T) {
	for text, want := range map[string]Place{
		"p 'main.(*Server).Handle'":        {Symbol: "main.(*Server).Handle"},
		"p libc.so.6:'open'+4":             {Module: "libc.so.6", Symbol: "open", Offset: 4},
		"p 'my lib.so':'operator new'":     {Module: "my lib.so", Symbol: "operator new"},
		"r 'a b'%return":                   {Symbol: "a b", Return: true},
		`p 'say "hi"'`:                     {Symbol: `say "hi"`},
		`p "it's"`:                         {Symbol: "it's"},
		"p <Foo<'a>>::bar":                 {Symbol: "<Foo<'a>>::bar"},
		"p 'main.f' x=@'a b' y=+0(%di)":    {Symbol: "main.f"},
		"p 0x4a1?":                         {Symbol: "0x4a1?", Glob: true},
		"p lib.so:0x4*%return":             {Module: "lib.so", Symbol: "0x4*", Glob: true, Return: true},
		"p 'a#b' # a comment with ' in it": {Symbol: "a#b"},
	} {
		d, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want.Pos = 2
		if d.Place != want {
			t.Errorf("%s: %+v, want %+v", text, d.Place, want)
		}
	}
	for _, text := range []string{"p 'open", "p libc.so.6:'open", "p ''", "p x:'' "} {
		if d, err := Parse(text); !HasCode(err, BadProbeAddr) {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
}

func TestNumberedMessages(t *testing.T) {
	for text, want := range map[string]string{
		"p f x=$stack10000":                "the words are $stack0 to $stack2048; memory farther away is read by its distance in bytes: +80000($stack)",
		"p f x=$stack18446744073709551615": "the words are $stack0 to $stack2048",
		"p f x=$stack18446744073709551616": "behind it stands a number of 64 bits, in decimal",
		"p f x=$arg0":                      "the arguments are $arg1 to $arg2048",
		"p f x=$argument":                  "known are $argN, $retval, $duration, $stack, $stackN and $comm",
	} {
		_, err := Parse(text)
		if err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
