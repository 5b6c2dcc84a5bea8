package hit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

const common = `format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

`

func TestFormat(t *testing.T) {
	tests := []struct{ def, want string }{
		{
			`p:a f`, "name: a\nID: 7\n" + common +
				"\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n" +
				"\nprint fmt: \"(%lx)\", REC->__probe_ip\n",
		},
		{
			`p:b f n=%di:s32 m=%si:u8 x=%dx s=+0(%cx):string c=%ax:char y=%ax:symbol z=%ax:symstr w=%ax:x16`, "name: b\nID: 7\n" + common +
				"\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n" +
				"\tfield:s32 n;\toffset:16;\tsize:4;\tsigned:1;\n" +
				"\tfield:u8 m;\toffset:20;\tsize:1;\tsigned:0;\n" +
				"\tfield:u64 x;\toffset:21;\tsize:8;\tsigned:0;\n" +
				"\tfield:__data_loc char[] s;\toffset:29;\tsize:4;\tsigned:1;\n" +
				"\tfield:u8 c;\toffset:33;\tsize:1;\tsigned:0;\n" +
				"\tfield:u64 y;\toffset:34;\tsize:8;\tsigned:0;\n" +
				"\tfield:__data_loc char[] z;\toffset:42;\tsize:4;\tsigned:1;\n" +
				"\tfield:u16 w;\toffset:46;\tsize:2;\tsigned:0;\n" +
				"\nprint fmt: \"(%lx) n=%d m=%u x=0x%Lx s=\\\"%s\\\" c='%c' y=%pS z=\\\"%s\\\" w=0x%x\", REC->__probe_ip, REC->n, REC->m, REC->x, " +
				"__get_str(s), REC->c, REC->y, __get_str(z), REC->w\n",
		},
		{
			`r:c f v=$retval:s64 a=+0($retval):u16[3] p=+0($retval):string[2] b=$retval:b4@0/32 k=$comm`, "name: c\nID: 7\n" + common +
				"\tfield:unsigned long __probe_func;\toffset:8;\tsize:8;\tsigned:0;\n" +
				"\tfield:unsigned long __probe_ret_ip;\toffset:16;\tsize:8;\tsigned:0;\n" +
				"\tfield:s64 v;\toffset:24;\tsize:8;\tsigned:1;\n" +
				"\tfield:u16 a[];\toffset:32;\tsize:6;\tsigned:0;\n" +
				"\tfield:__data_loc char[][2] p;\toffset:38;\tsize:8;\tsigned:1;\n" +
				"\tfield:u32 b;\toffset:46;\tsize:4;\tsigned:0;\n" +
				"\tfield:__data_loc char[] k;\toffset:50;\tsize:4;\tsigned:1;\n" +
				"\nprint fmt: \"(%lx <- %lx) v=%Ld a={%u,%u,%u} p={\\\"%s\\\",\\\"%s\\\"} b=%u k=\\\"%s\\\"\", REC->__probe_func, REC->__probe_ret_ip, " +
				"REC->v, REC->a[0], REC->a[1], REC->a[2], __get_str(p[0]), __get_str(p[1]), REC->b, __get_str(k)\n",
		},
	}
	for _, tt := range tests {
		d, err := event.Parse(tt.def)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, Format(d, nil, 7)); diff != "" {
			t.Errorf("%s: %s", tt.def, diff)
		}
	}
}

// TestFormatOfNames takes arguments from what they were compiled to: $arg* stands for several, and names have the types of the program.
func TestFormatOfNames(t *testing.T) {
	d, err := event.Parse("p:a f $arg*")
	if err != nil {
		t.Fatal(err)
	}
	p := &fetch.Program{Args: []fetch.Arg{
		{Name: "n", Type: fetch.Type{Kind: event.Signed, Size: 4}},
		{Name: "bit", Type: fetch.Type{Kind: event.Unsigned, Size: 2, Width: 3}},
		{Name: "text", Type: fetch.Type{Kind: event.String}},
		{Name: "all", Type: fetch.Type{Kind: event.Unsigned, Size: 1}, Count: 2},
	}}
	want := "name: a\nID: 7\n" + common +
		"\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n" +
		"\tfield:s32 n;\toffset:16;\tsize:4;\tsigned:1;\n" +
		"\tfield:u16 bit;\toffset:20;\tsize:2;\tsigned:0;\n" +
		"\tfield:__data_loc char[] text;\toffset:22;\tsize:4;\tsigned:1;\n" +
		"\tfield:u8 all[];\toffset:26;\tsize:2;\tsigned:0;\n" +
		"\nprint fmt: \"(%lx) n=%d bit=%u text=\\\"%s\\\" all={%u,%u}\", REC->__probe_ip, REC->n, REC->bit, __get_str(text), REC->all[0], REC->all[1]\n"
	if diff := cmp.Diff(want, Format(d, p, 7)); diff != "" {
		t.Error(diff)
	}
}

func TestProfileLine(t *testing.T) {
	want := "  myprobe" + strings.Repeat(" ", 37+1+13) + "12" + strings.Repeat(" ", 1+14) + "3\n"
	if got := ProfileLine("myprobe", 12, 3); got != want {
		t.Errorf("%q, not %q", got, want)
	}
}
