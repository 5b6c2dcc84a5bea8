package event

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestUprobe has definitions of uprobe_events as Linux 6.12 lists them.
func TestUprobe(t *testing.T) {
	for in, want := range map[string]string{
		"p:h/u /bin/busybox:0x1000":                                       "p:h/u /bin/busybox:0x0000000000001000",
		"r:h/u /bin/busybox:0x1000 $retval":                               "r:h/u /bin/busybox:0x0000000000001000 arg1=$retval",
		"p /bin/busybox:0x1000":                                           "p:uprobes/p_busybox_0x1000 /bin/busybox:0x0000000000001000",
		"r /lib/libc.so.6:4096":                                           "r:uprobes/p_libc_0x1000 /lib/libc.so.6:0x0000000000001000",
		"p:h/u /bin/busybox:0x1000 %ax a=%bx:u8 s=+0(%di):string c=$comm": "p:h/u /bin/busybox:0x0000000000001000 arg1=%ax a=%bx:u8 s=+0(%di):string c=$comm",
		"p:h/u /bin/busybox:0x1000 @+0x2000 b=+8(@+-1):s32":               "p:h/u /bin/busybox:0x0000000000001000 arg1=@+0x2000 b=+8(@+-1):s32",
		"p:h/u /bin/busybox:0x1000(0x2001)":                               "p:h/u /bin/busybox:0x0000000000001000(0x2001)",
		"p:h/u /bin/busybox:0x1000%return":                                "r:h/u /bin/busybox:0x0000000000001000",
		"p:h/u /bin/busybox:0x1000%return(0x2000)":                        "r:h/u /bin/busybox:0x0000000000001000(0x2000)",
		"p:h/ /bin/busybox:0x1000":                                        "p:h/p_busybox_0x1000 /bin/busybox:0x0000000000001000",
		"p:u /srv/a:b/c:8":                                                "p:uprobes/u \"/srv/a:b/c\":0x0000000000000008",
	} {
		d, err := (Parser{Uprobes: true}).Parse(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := d.String(); got != want || !d.Uprobe || d.Place.Kind != PlaceFile || !IsUprobe(in) {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
		again, err := (Parser{Uprobes: true}).Parse(d.String())
		if err != nil || again.String() != want || again.Appends(d) == nil {
			t.Errorf("%s: read back %v, %v", want, again, err)
		}
	}
}

// TestUprobeErrors has refusals as Linux 6.12 answers them: the error number, what error_log says, and where its caret stands.
func TestUprobeErrors(t *testing.T) {
	for in, want := range map[string]struct {
		code Code
		at   string // what stands at the caret
	}{
		"p:h/u":                               {NoPlace, ""},
		"p:h/u busybox:0x1000":                {BadCommand, "p:h"},
		"p:h/u /bin/busybox":                  {BadCommand, "p:h"},
		"p:h/u /bin/busybox:":                 {BadCommand, "p:h"},
		"p:h/u /bin/busybox:main":             {BadCommand, "p:h"},
		"x:h/u /bin/busybox:0x1000":           {BadCommand, "x:h"},
		"f:h/u /bin/busybox:0x1000":           {BadCommand, "f:h"},
		"w:h/u /bin/busybox:0x1000":           {BadCommand, "w:h"},
		"r1:h/u /bin/busybox:0x1000":          {BadCommand, "1:h"},
		"p:h/u /bin/busybox:0x":               {BadUprobeOffs, "0x"},
		"p:h/u /bin/busybox:0x1000%nosuch":    {BadAddrSuffix, "%nosuch"},
		"p:h/u /bin/busybox:0x1000(0x2000":    {RefcntOpenBrace, ""},
		"p:h/u /bin/busybox:0x1000(0x2000)x":  {BadRefcntSuffix, "x"},
		"p:h/u /bin/busybox:0x1000(x)":        {BadRefcnt, "x)"},
		"p:1/u /bin/busybox:0x1000":           {BadGroupName, "1/u"},
		"p:h/u /bin/busybox:0x1000 a=@+x":     {BadFileOffs, "@+x"},
		"p:h/u /bin/busybox:0x1000 a=@+":      {BadFileOffs, "@+"},
		"p:h/u /bin/busybox:0x1000 a=$retval": {RetvalOnProbe, "$retval"},
	} {
		_, err := (Parser{Uprobes: true}).Parse(in)
		var bad *Error
		if !errors.As(err, &bad) || bad.Code != want.code || bad.Errno() != syscall.EINVAL {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := in[min(bad.Pos, len(in)):]; !strings.HasPrefix(got, want.at) || want.at == "" && got != "" {
			t.Errorf("%s: the caret is at %q", in, got)
		}
		if silent := want.code == NoPlace || want.code == BadCommand && bad.Pos == 0; bad.Logged() == silent {
			t.Errorf("%s: logged %t", in, bad.Logged())
		}
		if !strings.HasPrefix(bad.Detail(), "trace_uprobe: error: ") {
			t.Errorf("%s: %s", in, bad.Detail())
		}
	}
}

// TestUprobeDeletes deletes an event of uprobe_events by its name and by its place, however it is written.
func TestUprobeDeletes(t *testing.T) {
	p := Parser{Uprobes: true}
	d, err := p.Parse("p:h/u /bin/busybox:0x1000(0x20) a=%di")
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]bool{
		"-:h/u": true, "-:u": true, "-:h/": true, "-:uprobes/u": false,
		"-:h/u /bin/busybox:0x1000(0x20)": true, "-:h/u /bin/busybox:4096(32) a=%di": true,
		"-:h/u /bin/busybox:0x1000": false, "-:h/u /bin/busybox:0x1001(0x20)": false, "-:h/u f": false, "-:h/u /bin/busybox:0x1000(0x20) a=%si": false,
	} {
		del, err := p.Parse(in)
		if err != nil || del.Deletes(d) != want {
			t.Errorf("%s: %v, want %t", in, err, want)
		}
	}
	k, err := Parse("p:h/u f a=%di")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Appends(d); !HasCode(err, EventExist) || !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a kprobe of the name: %v", err)
	}
	for _, line := range []string{"p:h/u main.go:12", "p:h/u src/main.go:12", "p:h/u f", "-:h/u /bin/busybox:0x1000", "w:h/u /bin/busybox:0x1000", "p", ""} {
		if IsUprobe(line) {
			t.Errorf("%s is one of uprobe_events", line)
		}
	}
}
