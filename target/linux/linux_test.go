package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

func parse(t *testing.T, text string) *event.Def {
	t.Helper()
	d, err := event.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestHolder(t *testing.T) {
	h := Holder{PID: 4711, Start: 123456, NS: 4026531836}
	for _, name := range []string{h.String(), h.group(0), h.group(17)} {
		if got, ok := parseHolder(name); !ok || got != h {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"kprobes", "kprobe_1", "kprobe_1_2", "kprobe_1_2_x", "kprobe_1_2_3_4_5", "kprobe_01_2_3", "kprobe_-1_2_3", "kprobe_1_2_99999999999999999999"} {
		if h, ok := parseHolder(name); ok {
			t.Errorf("%s is taken for %+v", name, h)
		}
	}
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	later, elsewhere := me, me
	later.Start++
	elsewhere.NS++
	elsewhere.PID = 1 << 30
	for h, gone := range map[Holder]bool{me: false, later: true, {PID: 1 << 30, NS: me.NS}: true, elsewhere: false} {
		if h.gone(me) != gone {
			t.Errorf("%v gone: %v", h, !gone)
		}
	}
}

func TestCommand(t *testing.T) {
	for _, c := range []struct{ def, want string }{
		{"p vfs_read", "p:G/n vfs_read __comm=$comm"},
		{"p:grp/e  vfs_read+5   a=%di", "p:G/n vfs_read+5 a=%di __comm=$comm"},
		{"r0:e vfs_read", "r:G/n vfs_read __comm=$comm"},
		{"r12 vfs_read $retval", "r12:G/n vfs_read $retval __comm=$comm"},
		{"p:e vfs_read%return", "p:G/n vfs_read%return __comm=$comm"},
		{"p vfs_read __comm=%di", "p:G/n vfs_read __comm=%di"},
	} {
		if got := command(parse(t, c.def), "G", "n"); got != c.want {
			t.Errorf("%s: %s", c.def, got)
		}
	}
}

// The kernel's position in our command is that of the same byte in the user's words.
func TestColumn(t *testing.T) {
	for _, def := range []string{"p vfs_read a=%di", "r7:very/long_name_of_an_event vfs_read a=%di", "p:e vfs_read a=%di"} {
		d := parse(t, def)
		cmd := command(d, "a_group_of_ours", "event")
		for _, word := range []string{"vfs_read", "a=%di", "%di"} {
			if got, want := column(d, cmd, strings.Index(cmd, word)), strings.Index(def, word); got != want {
				t.Errorf("%s: %s at %d, not %d", def, word, got, want)
			}
		}
		if got := column(d, cmd, 0); got != 0 {
			t.Errorf("%s: the kind is at %d", def, got)
		}
		if got := column(d, cmd, len(cmd)+5); got > len(def)+1 {
			t.Errorf("%s: behind the end is %d", def, got)
		}
		if got := column(d, cmd, strings.Index(cmd, "event")); got >= strings.IndexByte(def, ' ') {
			t.Errorf("%s: the name is at %d", def, got)
		}
	}
}

func TestRefused(t *testing.T) {
	d := parse(t, "p:mine vfs_read x=%foo")
	cmd := command(d, "g", "mine")
	log := "[    1.000000] trace_kprobe: error: Invalid probed address or symbol\n  Command: " + cmd + "\n             ^\n" +
		"[    2.000000] trace_kprobe: error: Invalid register name\n  Command: " + cmd + "\n" + strings.Repeat(" ", 11+strings.Index(cmd, "%foo")) + "^\n" +
		"[    3.000000] trace_kprobe: error: Something else\n  Command: p:other vfs_read\n           ^\n"
	err := refused(d, cmd, log, syscall.EINVAL)
	var e *event.Error
	if !errors.As(err, &e) || e.Code != event.BadRegName || e.Pos != strings.Index(d.Text, "%foo") || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%+v", err)
	}
	err = refused(d, cmd, strings.ReplaceAll(log, "Invalid register name", "Words of another kernel"), syscall.E2BIG)
	if !event.HasCode(err, event.FailRegProbe) || !strings.Contains(err.Error(), "Words of another kernel") || !errors.Is(err, syscall.E2BIG) {
		t.Errorf("%v", err)
	}
	for _, log := range []string{"", "\n", "  Command: " + cmd, "x\n  Command: " + cmd + "\n\n", "a: error: b\n  Command: " + cmd + "\n^\n"} {
		if err := refused(d, cmd, log, syscall.EBUSY); !event.HasCode(err, event.FailRegProbe) || !errors.Is(err, syscall.EBUSY) {
			t.Errorf("log %q: %v", log, err)
		}
	}
}

func TestExpand(t *testing.T) {
	funcs := []Func{{Name: "vfs_read"}, {Name: "vfs_readv"}, {Name: "other"}, {Name: "vfs_rex", Module: "mod"}}
	names := func(def string) string {
		all, err := expand(parse(t, def), funcs)
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, d := range all {
			out = append(out, d.Text)
		}
		return strings.Join(out, "|")
	}
	for def, want := range map[string]string{
		"r4:e vfs_re* $retval":      "r4:e vfs_read $retval|r4:e vfs_readv $retval",
		"p mod:vfs_* a=%di b=%si":   "p mod:vfs_rex a=%di b=%si",
		"p vfs_rea[!v]%return":      "p vfs_read%return",
		"p [!v]*":                   "p other",
		"p:x/y nothing_matches_it*": `column 7: Invalid probed address or symbol: no function that can be probed matches "nothing_matches_it*"`,
	} {
		if got := names(def); got != want {
			t.Errorf("%s: %s", def, got)
		}
	}
}

const formatText = `name: e
ID: 1234
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:unsigned long __probe_func;	offset:8;	size:8;	signed:0;
	field:unsigned long __probe_ret_ip;	offset:16;	size:8;	signed:0;
	field:s32 n;	offset:24;	size:4;	signed:1;
	field:__data_loc char[] s;	offset:28;	size:4;	signed:1;
	field:u8 a[3];	offset:32;	size:3;	signed:0;
	field:__data_loc char[] two[2];	offset:35;	size:8;	signed:1;
	field:u64 y;	offset:43;	size:8;	signed:0;
	field:__data_loc char[] __comm;	offset:51;	size:4;	signed:1;

print fmt: "(%lx <- %lx) n=%d s=\"%s\" a={0x%x,0x%x,0x%x} two={\"%s\",\"%s\"} y=%pS __comm=\"%s\"", REC->__probe_func, REC->__probe_ret_ip, REC->n, __get_str(s), REC->a[0], REC->a[1], REC->a[2], __get_str(two[0]), __get_str(two[1]), REC->y, __get_str(__comm)
`

// record is one of formatText.
func record() []byte {
	b := make([]byte, 55)
	le := binary.LittleEndian
	le.PutUint16(b, 1234)
	b[2], b[3] = flagIRQsOff|flagResched|flagSoftIRQ, 0x12
	le.PutUint32(b[4:], 99)
	le.PutUint64(b[8:], 0xffffffff81000000)
	le.PutUint64(b[16:], 0xffffffff81000123)
	le.PutUint32(b[24:], ^uint32(6))
	copy(b[32:], "\x01\x02\x03")
	le.PutUint64(b[43:], 0xffffffff81000040)
	for at, s := range map[int]string{28: "a\"b\n\x00", 35: "one\x00", 39: faultString, 51: "task\x00"} {
		le.PutUint32(b[at:], uint32(len(s))<<16|uint32(len(b)))
		b = append(b, s...)
	}
	return b
}

func TestRecord(t *testing.T) {
	f, err := parseFormat(formatText)
	if err != nil {
		t.Fatal(err)
	}
	data := record()
	rec, err := f.translate([]byte("before")[:0], data)
	if err != nil {
		t.Fatal(err)
	}
	vs, err := f.prog.Decode(rec, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	syms := symbols{{addr: 0xffffffff81000000, name: "f"}, {addr: 0xffffffff81000080, name: "g"}}
	got := string(fetch.AppendValues(nil, vs, syms.at))
	if want := ` n=-7 s="a\"b\n" a={0x1,0x2,0x3} two={"one",(fault)} y=f+0x40/0x80`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if f.id != 1234 || !f.prog.Return || word(data, f.ip) != 0xffffffff81000000 || word(data, f.caller) != 0xffffffff81000123 || f.task(data) != "task" {
		t.Errorf("%+v, task %q", f, f.task(data))
	}
	c, ok := parseCommon(data)
	if x := c.context(); !ok || string(x[:5]) != "dns21" || c.pid != 99 {
		t.Errorf("%+v: %s", c, x)
	}
	for n := range data {
		if _, err := f.translate(nil, data[:n]); err == nil && n < len(data)-20 {
			t.Errorf("a record of %d bytes is taken", n)
		}
		_ = f.size <= n && f.task(data[:n]) == "task"
	}
}

func TestFormatDamaged(t *testing.T) {
	for _, c := range [][2]string{
		{"ID: 1234", "ID: 99999"},
		{"__probe_func", "other"},
		{"offset:24", "offset:99999"},
		{"offset:24;\tsize:4", "offset:24;\tsize:7"},
		{"offset:28;\tsize:4", "offset:28;\tsize:8"},
		{"offset:24;", ""},
		{"a={0x%x,", "a={" + strings.Repeat("0x%x,", 99)},
	} {
		text := strings.Replace(formatText, c[0], c[1], 1)
		if f, err := parseFormat(text); err == nil {
			t.Errorf("%s: taken: %+v", c, f)
		}
	}
}

// pageOf makes a page of a ring of its entries.
func pageOf(ts uint64, entries ...[]byte) []byte {
	data := slices.Concat(entries...)
	b := binary.LittleEndian.AppendUint64(nil, ts)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data))|pageMissed)
	return append(append(b, data...), make([]byte, 32)...)
}

func words(ws ...uint32) (b []byte) {
	for _, w := range ws {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func TestPage(t *testing.T) {
	page := pageOf(1000,
		words(2|5<<5, 0x11, 0x12),              // 8 bytes, 5 ns later
		words(entryExtend|1<<5, 2),             // 1 + 2<<27 ns later
		words(0|3<<5, 8, 0x21),                 // its length stands behind: 4 bytes
		words(entryPadding|7<<5, 8, 0xdead),    // taken back
		words(entryStamp|9<<5, 1<<5),           // an absolute time
		words(1|1<<5, 0x31),                    //
		words(entryPadding), words(0xdeadbeef)) // the rest is nothing
	var got []string
	err := walkPage(page, func(ts uint64, data []byte) { got = append(got, fmt.Sprintf("%d:%x", ts, data)) })
	const later = 1000 + 5 + 1 + 2<<27
	want := []string{"1005:1100000012000000", fmt.Sprintf("%d:21000000", later+3), fmt.Sprintf("%d:31000000", 1<<32+9+1)}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, bad := range [][]byte{
		nil, page[:10], page[:20], pageOf(1, words(28|1<<5, 1)), pageOf(1, words(1<<5)), pageOf(1, words(1<<5, 3)),
		pageOf(1, words(1<<5, 1<<30)), pageOf(1, words(1<<5, 0xffffffff)), pageOf(1, words(entryExtend)), pageOf(1, []byte{1, 2}),
	} {
		if err := walkPage(bad, func(uint64, []byte) {}); err == nil {
			t.Errorf("%x is taken", bad)
		}
	}
}

func FuzzPage(f *testing.F) {
	f.Add(pageOf(1, words(2|5<<5, 1, 2), words(0|3<<5, 8, 3)))
	format, err := parseFormat(formatText)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pageOf(1, words(0, uint32(4+len(record()))), record()))
	f.Fuzz(func(t *testing.T, page []byte) {
		n := 0
		_ = walkPage(page, func(_ uint64, data []byte) {
			n += 4 + len(data)
			if rec, err := format.translate(nil, data); err == nil {
				if _, err := format.prog.Decode(rec, 0, ""); err != nil {
					t.Errorf("record %x: %v", data, err)
				}
			}
		})
		if n > len(page) {
			t.Errorf("%d bytes of %d", n, len(page))
		}
	})
}

func TestProfile(t *testing.T) {
	events := parseEvents("p:a/x f a=%di\nr4:b/x g\np:a/x h+4\nwhat is this\n")
	p, err := parseProfile("  x   10   1\n  x   20   2\n  x   30   3\n", events)
	if err != nil || p["a/x"] != (profiled{40, 4}) || p["b/x"] != (profiled{20, 2}) {
		t.Errorf("%v: %v", p, err)
	}
	for _, text := range []string{"", "  x 1 1\n", "  x 1 1\n  y 1 1\n  x 1 1\n", "  x 1\n  x 1 1\n  x 1 1\n", strings.Repeat("  x 1 1\n", 4), strings.Repeat("  x 1 b\n", 3)} {
		if _, err := parseProfile(text, events); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if n := parseLost("entries: 7\noverrun: 3\ncommit overrun: 0\nbytes: 99\ndropped events: 4\nread events: 9\n"); n != 7 {
		t.Errorf("lost %d, not 7", n)
	}
}

func TestList(t *testing.T) {
	list := parseList("ffffffff81000000  k  alias+0x0    [FTRACE]\nffffffff81000104  r  g+0x4  mod [DISABLED][OPTIMIZED]\nffffffff81000200  k  h+0x0    \nbad\n")
	events := parseEvents("p:a/x f\nr:a/y mod:g\np:a/z h+0\np:a/w 0xffffffff81000200\np:a/v f+8\n")
	syms := symbols{{addr: 0xffffffff81000000, name: "f"}, {addr: 0xffffffff81000100, name: "g"}, {addr: 0xffffffff81000200, name: "h"}}
	at := placesOf(events, syms)
	for i, want := range []int{0, 1, 2, 2, -1} {
		if got := slices.IndexFunc(list, func(p placed) bool { return p.stands(&events[i], at) }); got != want {
			t.Errorf("%+v is line %d, not %d", events[i], got, want)
		}
	}
	for i, want := range []string{"ftrace", "jump", "int3"} {
		if got := list[i].tactic(); got != want {
			t.Errorf("%s: %s, not %s", list[i].line, got, want)
		}
	}
}

func TestFuncs(t *testing.T) {
	syms, err := parseSymbols(strings.NewReader(`0000000000001000 A percpu
ffffffff81000300 T barred
ffffffff81000000 t first
ffffffff81000000 T alias
ffffffff81000100 D data
ffffffff81000200 T notrace
ffffffff81000400 T last
ffffffffc0000000 t first	[mod]
nonsense
`))
	if err != nil {
		t.Fatal(err)
	}
	fns, err := probeable(syms, parseTraced("first\nbarred\nlast\nfirst [mod]\n"), parseBlacklist("0xffffffff81000300-0xffffffff81000310\tbarred\n"), "*")
	if err != nil || fmt.Sprintf("%x", fns) != "[{6669727374  ffffffff81000000 100} {616c696173  ffffffff81000000 100} {6c617374  ffffffff81000400 0} {6669727374 6d6f64 ffffffffc0000000 0}]" {
		t.Errorf("%+v, %x: %v", fns, fns, err)
	}
	if s, ok := syms.at(0xffffffff81000010); !ok || s.Name != "first" || s.Off != 16 || s.Size != 0x100 {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, addr := range []uint64{0x1000, 0xffffffff80ffffff, 0xffffffff81000401, 0xffffffffc0000001} {
		if s, ok := syms.at(addr); ok {
			t.Errorf("at %x: %+v", addr, s)
		}
	}
}

func TestSharePart(t *testing.T) {
	for _, c := range []struct {
		lost uint64
		over []uint64
		want string
	}{
		{0, []uint64{3, 4}, "[0 0]"},
		{10, []uint64{10}, "[10]"},
		{9, []uint64{12}, "[9]"},
		{10, []uint64{0, 5, 5}, "[0 5 5]"},
		{10, []uint64{1, 1, 1}, "[4 3 3]"},
		{1 << 62, []uint64{1 << 62, 0}, "[4611686018427387904 0]"},
		{5, []uint64{0, 0}, "[5 0]"},
		{5, nil, "[]"},
	} {
		if got := fmt.Sprint(share(c.lost, c.over)); got != c.want {
			t.Errorf("%d by %v: %s, not %s", c.lost, c.over, got, c.want)
		}
	}
}
