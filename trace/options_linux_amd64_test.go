package trace

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// bodyOf is the trace without its head.
func bodyOf(t *testing.T, in *Instance) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text(t, in.WriteTrace)) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestPrintOptions has one hit in the forms that the options say.
func TestPrintOptions(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push n=\\-7:s16 s=\\\"text\":string"))
	must(t, in.Enable("", "", true))
	goes(prog, 1, "f_push")
	id := in.entries[key("kprobes", "a")].id
	for o, want := range map[Option]string{
		OptionRaw:     fmt.Sprintf(`^\d+ \d+ \d+ type: %d$`, id),
		OptionHex:     fmt.Sprintf(`^[0-9a-f]{8} [0-9a-f]{8} [0-9a-f]{16} type: %d$`, id),
		OptionBin:     fmt.Sprintf(`type: %d$`, id),
		OptionFields:  `: a: __probe_ip=0x[0-9a-f]+ \(\d+\) n=0xfff9 \(-7\) s=text$`,
		OptionSymAddr: `: a: \(f_push\+0x0/0x[0-9a-f]+ <[0-9a-f]{16}>\) n=-7 s="text"$`,
	} {
		must(t, in.SetOption(o, true))
		got := text(t, in.WriteTrace)
		if !regexp.MustCompile(`(?m)` + want).MatchString(got) {
			t.Errorf("%s: %q, want %s", o, got, want)
		}
		must(t, in.SetOption(o, false))
	}
	if got, want := bodyOf(t, in), ") n=-7 s=\"text\"\n"; !strings.Contains(got, want) {
		t.Errorf("without options: %s", got)
	}
	in.Clear()
	_, err := in.Mark(unix.Getpid(), "words")
	must(t, err)
	must(t, in.SetOption(OptionPrintkMsgOnly, true))
	if got := bodyOf(t, in); !strings.HasPrefix(got, "words\n") {
		t.Errorf("of a marker the text alone is asked for: %s", got)
	}
	for _, o := range []Option{"nosuch", refusing} {
		if err := in.SetOption(o, true); !errors.Is(err, unix.EINVAL) {
			t.Errorf("option %s: %v", o, err)
		}
	}
}

// TestStacktraceOption has stacks behind the hits of an event that is enabled, while the option is on; the events of other instances have
// none.
func TestStacktraceOption(t *testing.T) {
	prog, in := instance(t, nil)
	other, err := in.NewInstance("other")
	must(t, err)
	must(t, in.Write("p:a f_push"))
	for _, o := range []*Instance{in, other} {
		must(t, o.Enable("", "", true))
	}
	must(t, in.SetOption(OptionStacktrace, true))
	n := goes(prog, 5, "f_push")
	stack := regexp.MustCompile(`(?m)^.*: a: \(f_push.*\n.*: <stack trace>\n => f_push\b`)
	if out := bodyOf(t, in); len(stack.FindAllString(out, -1)) != n || n == 0 {
		t.Errorf("stacks of %d hits:\n%.1000s", n, out)
	}
	if out := bodyOf(t, other); strings.Contains(out, " => ") {
		t.Errorf("stacks in another instance:\n%.1000s", out)
	}
	must(t, in.SetOption(OptionStacktrace, false))
	in.Clear()
	n = goes(prog, 5, "f_push")
	if out := bodyOf(t, in); strings.Contains(out, " => ") || strings.Count(out, ": a: ") < n {
		t.Errorf("with the option off, of %d hits:\n%.1000s", n, out)
	}
}

// TestRecordOptions has names and processes of threads looked up while the options are on.
func TestRecordOptions(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push"))
	must(t, in.Enable("", "", true))
	must(t, in.SetOption(OptionRecordCmd, false))
	goes(prog, 1, "f_push")
	if out := bodyOf(t, in); !strings.Contains(out, "<...>-") || strings.Contains(out, "work-") {
		t.Errorf("names of threads:\n%.400s", out)
	}
	if got := text(t, in.WriteTGIDs); got != "" {
		t.Errorf("processes of threads: %s", got)
	}
	must(t, in.SetOption(OptionRecordCmd, true))
	must(t, in.SetOption(OptionRecordTGID, true))
	in.Clear()
	goes(prog, 1, "f_push")
	out := text(t, in.WriteTrace)
	if column := fmt.Sprintf(" (%7d) [", prog.PID); !strings.Contains(out, "   TGID   ") || !strings.Contains(out, column) || !strings.Contains(out, "work-") {
		t.Errorf("a trace without %q:\n%.2000s", column, out)
	}
	if got, want := text(t, in.WriteTGIDs), fmt.Sprintf(" %d\n", prog.PID); !strings.Contains(got, want) {
		t.Errorf("processes of threads %q, want %q", got, want)
	}
}

// TestFreeing switches tracing off where the option says so.
func TestFreeing(t *testing.T) {
	_, in := instance(t, nil)
	if in.FreeBuffer(); !in.Tracing() {
		t.Error("tracing is off")
	}
	must(t, in.SetOption(OptionDisableOnFree, true))
	if in.FreeBuffer(); in.Tracing() {
		t.Error("tracing is on")
	}
}

// TestOptionFiles has those of other instances without what is of the first one alone.
func TestOptionFiles(t *testing.T) {
	_, in := instance(t, nil)
	other, err := in.NewInstance("other")
	must(t, err)
	for _, o := range in.Options() {
		want := o != OptionRecordCmd && o != "trace_printk" && o != OptionPrintkMsgOnly
		if !in.HasOptionFile(o) || other.HasOptionFile(o) != want {
			t.Errorf("%s: a file in the first instance %t, in another %t", o, in.HasOptionFile(o), other.HasOptionFile(o))
		}
	}
	if in.HasOptionFile("nosuch") {
		t.Error("there is a file of no option")
	}
}
