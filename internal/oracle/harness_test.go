package oracle

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "f.txt")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReadCorpus(t *testing.T) {
	symbols := func(name string) (at, next uint64) {
		if name != "f" {
			return 0, 0x1000
		}
		return 0x1000, 0x1010
	}
	name := write(t, "# why\n\np f\n+> {-*3}x{ab*2}\n+on g/e\n+turn hit 1\n\"#\\t{#\\n*2}\"\np {&f+16}\nr f+{>f} {>f+3}\n")
	cases, err := ReadCorpus(symbols, name)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, c := range cases {
		var steps []string
		for _, s := range c.Steps {
			steps = append(steps, string('0'+rune(s.Op))+s.Text)
		}
		got = append(got, steps)
	}
	want := [][]string{{"0p f\n", "1---xabab\n", "2g/e", "5hit 1"}, {"0#\t#\n#\n"}, {"0p 0x1010\n"}, {"0r f+0x10 0x13\n"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := cases[1].String(); !strings.HasPrefix(got, "f.txt:7: ") {
		t.Errorf("the case is called %q", got)
	}
	for _, bad := range []string{"+ p f\n", "p {&nosuch}\n", "\"p\n"} {
		if _, err := ReadCorpus(symbols, write(t, bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestTable(t *testing.T) {
	table, err := ReadTable(write(t, "# text\n\nOne\nreason.\n  answer | p* | ok | *bad\n\nTwo.\n  column | r f | 1 | 2\n\nThree.\n  answer? | f | ok | bad\n"))
	if err != nil {
		t.Fatal(err)
	}
	of := func(step, field, kernel, ours string) *Difference {
		return &Difference{&Case{Steps: []Step{{Shown: step}}}, 0, field, kernel, ours}
	}
	if r := table.Explain(of("p f", FieldAnswer, "ok", "is bad")); r == nil || r.Reason != "One reason." || r.Line != 5 {
		t.Errorf("explained by %+v", r)
	}
	for _, d := range []*Difference{
		of("q f", FieldAnswer, "ok", "bad"), of("p f", FieldColumn, "ok", "bad"), of("p f", FieldAnswer, "no", "bad"),
		of("p f", FieldAnswer, "ok", "bad!"), of("r f", FieldColumn, "1", "3"),
	} {
		if r := table.Explain(d); r != nil {
			t.Errorf("%v is explained by %+v", d, r)
		}
	}
	if r := table.Reasons(); len(r) != 3 || r[0].Uses != 1 || r[1].Uses != 0 {
		t.Errorf("reasons: %v", r)
	}
	if u := table.Unused(); len(u) != 1 || u[0].Reason != "Two." {
		t.Errorf("unused: %v", u)
	}
	if r := table.Explain(of("f", FieldAnswer, "ok", "bad")); r == nil || r.Reason != "Three." {
		t.Errorf("what some builds do is explained by %+v", r)
	}
	for _, bad := range []string{"  answer | p | a | b\n", "Why.\n  answer | p | a\n"} {
		if _, err := ReadTable(write(t, bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"*", "", true},
		{"a*", "a", true},
		{"a*a", "a", false},
		{"a*b*c", "axbyc", true},
		{"a*b*c", "ac", false},
		{"*b*", "abc", true},
		{"a.c", "abc", false},
		{"a**c", "ac", true},
	} {
		if got := match(c.pattern, c.s); got != c.want {
			t.Errorf("%q, %q: %v", c.pattern, c.s, got)
		}
	}
}

func TestParseLog(t *testing.T) {
	got, err := parseLog("[   12.345678] trace_kprobe: error: Bad thing\n  Command: p f %x\n               ^\n")
	if err != nil || len(got) != 1 || got[0] != (LogEntry{"Bad thing", "p f %x", 4}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"x\n", "[1.5] trace_kprobe: error: x\n  Command: p\n           ^\n", "[    1.000000] trace_kprobe: error: x\n  Command: p\n           ^"} {
		if _, err := parseLog(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestHits takes the lines of a command's threads out of a trace.
func TestHits(t *testing.T) {
	const text = "# tracer: nop\n#\n" +
		"           agent-7       [000] .....     1.000001: ev: (f+0x0/0x10) a=1\n" +
		"             hit-7       [000] dNh1.     1.000002: ev: (f+0x0/0x10) s=\"x\ny\"\n" +
		"           other-8       [001] .....     1.000003: ev: (f+0x0/0x10) a=3\n"
	got, err := hitsOf(text, "hit")
	if err != nil {
		t.Fatal(err)
	}
	want := []hit{
		{"agent", "7", "[000]", ".....", "ev: (f+0x0/0x10) a=1"},
		{"hit", "7", "[000]", "d.h1.", "ev: (f+0x0/0x10) s=\"x\ny\""},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(hit{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if _, err := hitsOf("nonsense\n", "hit"); err == nil {
		t.Error("another form is taken")
	}
}

// said is a side that says what it is told to.
type said struct {
	Side
	answers  []Answer
	listing  string
	format   string
	n, reset int
}

func (s *said) Reset() error { s.reset++; return nil }

func (s *said) Do(Step) (Answer, error) {
	s.n++
	return s.answers[s.n-1], nil
}
func (s *said) Listing() (string, error)              { return s.listing, nil }
func (s *said) Format(string, string) (string, error) { return s.format, nil }

// TestRun finds every kind of difference, and ends a case that only one side carries on.
func TestRun(t *testing.T) {
	c := &Case{File: "f", Line: 1, Steps: make([]Step, 5)}
	log := func(text string, col int) []LogEntry { return []LogEntry{{text, "p f", col}} }
	k := &said{listing: "p:g/e f\n", format: "name: e\nID: 7\nx\n", answers: []Answer{
		{}, {Errno: syscall.EINVAL, Log: log("a", 2)}, {Errno: syscall.EINVAL, Log: log("a", 2)}, {},
	}}
	o := &said{listing: "p:g/e g\n", format: "name: e\nID: 8\ny\n", answers: []Answer{
		{}, {Errno: syscall.EINVAL, Log: log("a", 3)}, {Errno: syscall.ENOENT, Log: log("b", 2)}, {Errno: syscall.EINVAL},
	}}
	r, err := (&Pair{Kernel: k, Ours: o}).Run([]*Case{c})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range r.Differences {
		got = append(got, string('0'+rune(d.Step))+" "+d.Field+": "+d.Kernel+" / "+d.Ours)
	}
	want := []string{
		"0 listing: p:g/e f / p:g/e g", "0 format: x / y",
		"1 column: 2 / 3", "1 listing: p:g/e f / p:g/e g", "1 format: x / y",
		`2 answer: EINVAL "a" / ENOENT "b"`, "2 listing: p:g/e f / p:g/e g", "2 format: x / y",
		"3 answer: ok / EINVAL",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if r.Steps != 4 || r.Accepted != 2 || r.Refused != 2 || r.Equal != 0 || r.Formats != 3 || k.reset != 2 || o.reset != 2 {
		t.Errorf("counted %+v, resets %d and %d", r, k.reset, o.reset)
	}
}
