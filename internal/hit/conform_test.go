package hit

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// conformTranscript is what a kernel's files have said to small cases of shell (TestConformKernel and TestConformProcess in internal/e2e).
const conformTranscript = "../e2e/testdata/conform.txt"

// conformSections are the sections about triggers and synthetic events, with the definitions that they begin with.
var conformSections = map[string][]string{"trigger": fchownat, "hist": fchownat, "synthetic": nil}

var fchownat = []string{`p:g/e do_fchownat dfd=%di:s32 name=\"/no/such" u=%dx:u32`, "p:h/s ksys_sync"}

// conformElsewhere are the steps that need more than a set of triggers.
var conformElsewhere = map[string]string{
	`echo 0 > events/h/enable; echo stacktrace:1 > events/g/e/trigger`: "records with callers",
	`echo x > events/g/trigger`:                                        "which files there are",
	`dd if=events/g/e/hist bs=7`:                                       "how files are read",
}

// conformDifferent are the steps to which the kernel says something else, with the reason.
var conformDifferent = map[string]string{
	`echo 'hist:keys=u:vals=name'`: "the kernel sums up the addresses of the strings",
}

// TestConformTriggers puts the cases of shell to a live set, as files would, and compares what they print with what the kernel has printed.
func TestConformTriggers(t *testing.T) {
	text, err := os.ReadFile(conformTranscript)
	if err != nil {
		t.Fatal(err)
	}
	done := map[string]int{}
	for name, probes := range conformSections {
		_, section, ok := strings.Cut(string(text), "\n## "+name+"\n")
		if !ok {
			t.Fatalf("%s has no section %s", conformTranscript, name)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		sh := newConformShell(t, probes)
		sum := "" // a line that the kernel lists, since it has taken what is refused here
		for _, step := range strings.Split("\n"+section, "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			if want != "" && !strings.HasSuffix(want, "\n") {
				want += "\n"
			}
			has := func(m map[string]string) bool {
				for part := range m {
					if strings.HasPrefix(command, part) {
						return true
					}
				}
				return false
			}
			if has(conformElsewhere) {
				continue
			}
			if strings.HasPrefix(command, "ls ") { // which files there are others know
				want = want[strings.Index(want, "name: "):]
			}
			got := sh.run(command)
			if has(conformDifferent) {
				if got == want {
					t.Errorf("%s: %s is no difference any more", name, command)
				}
				sum = want[strings.LastIndex(strings.TrimSuffix(want, "\n"), "\n")+1:]
				continue
			}
			if strings.Contains(command, "echo \"hist:keys=u\" > ") {
				sum = "" // the histograms are taken away
			}
			if sum != "" {
				want = strings.Replace(want, sum, "", 1)
			}
			if done[name]++; got != want {
				t.Errorf("%s: %s\n%s\nthe kernel:\n%s", name, command, got, want)
			}
		}
	}
	if done["trigger"] < 48 || done["hist"] < 60 || done["synthetic"] < 28 {
		t.Errorf("steps that were compared: %v", done)
	}
}

// conformShell stands for the files of a tracefs, as far as triggers are concerned, and for a shell that writes and reads them.
type conformShell struct {
	*testing.T
	set    *Triggers
	syn    Synthetics
	probes map[string]*Event // by GROUP/EVENT
	trace  string
	log    []string
	out    strings.Builder
}

func newConformShell(t *testing.T, probes []string) *conformShell {
	sh := &conformShell{T: t, probes: map[string]*Event{}}
	sh.set = NewLive(&Host{
		Snapshot: func() {},
		Traced: func(def *event.Synthetic, h *Hit, vs []fetch.Value, shown Shown) {
			if shown.Line {
				sh.trace += string(sh.printer().Synthetic(nil, def, h, vs))
			}
		},
	}, &sh.syn)
	for _, p := range probes {
		sh.define(p)
	}
	return sh
}

// conformNames has do_fchownat and ksys_sync.
type conformNames struct{}

func (conformNames) Comm(int) string { return "hit" }

func (conformNames) Symbol(addr uint64) (fetch.Sym, bool) {
	return fetch.Sym{Name: map[uint64]string{0x1000: "do_fchownat", 0x2000: "ksys_sync"}[addr], Size: 0x20}, true
}

func (sh *conformShell) printer() *Printer { return &Printer{Names: conformNames{}} }

func (sh *conformShell) define(text string) {
	prog := program(sh.T, text, fetch.PointEntry)
	def, err := event.Parse(text)
	if err != nil {
		sh.Fatal(err)
	}
	e := &Event{Group: def.Group, Name: def.Name, Prog: prog, ArgsOff: 16, Addr: 0x1000}
	if def.Place.Symbol == "ksys_sync" {
		e.Addr = 0x2000
	}
	sh.probes[def.Group+"/"+def.Name] = e
	sh.set.Event(def.Group, def.Name, prog, func(filter string) (*fetch.Filter, error) { return prog.Filter(filter, fetch.FilterEnv{}) })
}

// undefine deletes all probes; EBUSY: one is in use.
func (sh *conformShell) undefine() error {
	for _, e := range sh.probes {
		if err := sh.set.Busy(e.Group, e.Name); err != nil {
			return err
		}
	}
	for key, e := range sh.probes {
		if err := sh.set.Forget(e.Group, e.Name); err != nil {
			return err
		}
		delete(sh.probes, key)
	}
	return nil
}

// hit has an event hit n times, where its hits come.
func (sh *conformShell) hit(what string, n int) {
	key, rec := "g/e", record(0xffffff9c, 7)
	if what == "sync" {
		key, rec = "h/s", record()
	}
	e := sh.probes[key]
	if len(e.Prog.Args) == 1 {
		rec = record(7)
	}
	for range n {
		if !sh.set.Need(e.Group, e.Name).Hits {
			return
		}
		h := Hit{Event: e, TID: 7, Nanos: 1e9, Rec: rec}
		if v := sh.set.Hit(&h, conformNames{}); v.Line {
			sh.trace += string(sh.printer().Text(nil, &h))
		}
	}
}

var (
	conformEcho = regexp.MustCompile(`^(echo|printf|:|put)\s*(.*?)\s*(>>|>)\s*(\S+)$`)
	conformTask = regexp.MustCompile(`(?m)^ *\S+-\d+ +\[\d+\] (\S{5}) +[\d.]+: `)
	conformErrs = map[syscall.Errno]string{
		syscall.EEXIST: "File exists", syscall.EINVAL: "Invalid argument", syscall.ENOENT: "No such file or directory", syscall.EBUSY: "Device or resource busy",
	}
)

// run runs a line, and gives what it has printed.
func (sh *conformShell) run(line string) string {
	sh.out.Reset()
	for _, c := range split(line) {
		if !sh.command(c) {
			break
		}
	}
	out := conformTask.ReplaceAllString(sh.out.String(), "TASK-PID [CPU] $1 TIME: ")
	return regexp.MustCompile(`\+0x[0-9a-f]+/0x[0-9a-f]+`).ReplaceAllString(out, "+OFF")
}

// split splits a line at the semicolons outside quotes.
func split(line string) (out []string) {
	quote, start := byte(0), 0
	for i := range len(line) {
		switch c := line[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == ';':
			out, start = append(out, strings.TrimSpace(line[start:i])), i+1
		}
	}
	return append(out, strings.TrimSpace(line[start:]))
}

// unquote is what the shell makes of a word.
func unquote(s string) string {
	switch {
	case strings.HasPrefix(s, "'"):
		return strings.Trim(s, "'")
	case strings.HasPrefix(s, `"`):
		return strings.NewReplacer(`\$`, "$", `\n`, "\n").Replace(s[1 : len(s)-1])
	}
	return s
}

// command runs a command; false: the shell has ended.
func (sh *conformShell) command(c string) bool {
	words := strings.Fields(c)
	switch words[0] {
	case "hit":
		n, err := strconv.Atoi(words[2])
		if err != nil {
			sh.Fatal(err)
		}
		sh.hit(words[1], n)
	case "last":
		if n := len(sh.log); n > 0 {
			sh.out.WriteString("[] " + sh.log[n-1])
		}
		sh.log = nil
	case "lines":
		sh.out.WriteString(sh.trace)
	case "ls":
	case "sed":
		sh.out.WriteString(regexp.MustCompile(`(?m)^ID:.*`).ReplaceAllString(SyntheticFormat(sh.syn.Event("lat"), 7), "ID"))
	case "put":
		if err := sh.undefine(); err != nil {
			sh.Fatal(err)
		}
		sh.define("p:g/e do_fchownat u=%dx:u32")
	case "cat", "grep", "head":
		sh.read(c)
	default:
		return sh.write(c)
	}
	return true
}

// read is cat FILE…, head -n N FILE or grep -v ^# FILE.
func (sh *conformShell) read(c string) {
	c, pipe, _ := strings.Cut(c, " | ")
	words := strings.Fields(c)
	text := ""
	for _, f := range words[1:] {
		if strings.Contains(f, "_") || strings.Contains(f, "/") {
			text += sh.file(f)
		}
	}
	lines := strings.SplitAfter(text, "\n")
	switch {
	case words[0] == "grep":
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#") })
	case words[0] == "head", strings.HasPrefix(pipe, "head"):
		n := map[bool]int{true: 3, false: 5}[words[0] == "head"]
		lines = lines[:min(n, len(lines))]
	}
	sh.out.WriteString(strings.Join(lines, ""))
}

func (sh *conformShell) file(f string) string {
	parts := strings.Split(f, "/")
	switch {
	case f == "tracing_on":
		return map[bool]string{true: "1\n", false: "0\n"}[sh.set.Tracing()]
	case f == "synthetic_events":
		return sh.syn.String()
	case f == "dynamic_events":
		text := ""
		for _, d := range sh.syn.All() {
			text += "s:" + event.SyntheticGroup + "/" + d.String() + "\n"
		}
		return text
	case len(parts) == 3: // events/GROUP/enable
		if sh.set.State(parts[1], "e").Enabled {
			return "1\n"
		}
		return "0\n"
	case parts[3] == "enable":
		return sh.set.State(parts[1], parts[2]).String() + "\n"
	case parts[3] == "trigger":
		return sh.set.List(parts[1], parts[2])
	case parts[3] == "hist":
		return string(sh.set.AppendHist(nil, parts[1], parts[2], nil))
	}
	sh.Fatalf("there is no file %s", f)
	return ""
}

// write is echo, printf or : with a redirection.
func (sh *conformShell) write(c string) bool {
	m := conformEcho.FindStringSubmatch(c)
	if m == nil {
		sh.Fatalf("command %q", c)
	}
	verb, text, file := m[1], unquote(m[2]), m[4]
	if m[3] == ">" {
		if err := sh.truncate(file); err != nil {
			sh.out.WriteString("sh: can't create " + file + ": " + sh.note(err) + "\n")
			return verb != ":"
		}
	}
	if verb == ":" || text == "" && verb == "printf" {
		return true
	}
	if err := sh.put(file, text); err != nil && verb == "echo" {
		sh.out.WriteString("sh: write error: " + sh.note(err) + "\n")
	}
	return true
}

// note logs an error, and gives its text.
func (sh *conformShell) note(err error) string {
	var entry interface{ LogEntry() string }
	if errors.As(err, &entry) && entry.LogEntry() != "" {
		sh.log = append(sh.log, entry.LogEntry())
	}
	for no, text := range conformErrs {
		if errors.Is(err, no) {
			return text
		}
	}
	return err.Error()
}

func (sh *conformShell) truncate(file string) error {
	parts := strings.Split(file, "/")
	switch {
	case file == "synthetic_events":
		return sh.syn.Truncate()
	case file == "kprobe_events":
		return sh.undefine()
	case len(parts) == 4 && parts[3] == "trigger":
		sh.set.Truncate(parts[1], parts[2])
	}
	return nil
}

func (sh *conformShell) put(file, text string) error {
	parts := strings.Split(file, "/")
	switch {
	case file == "tracing_on":
		sh.set.SetTracing(text == "1")
		return nil
	case file == "trace":
		sh.trace = ""
		return nil
	case file == "synthetic_events":
		return sh.syn.Write(text + "\n")
	case file == "dynamic_events" && strings.HasPrefix(text, "-:"):
		return sh.syn.Delete(strings.TrimPrefix(text, "-:synthetic/"))
	case file == "dynamic_events":
		def, err := event.ParseSynthetic(text)
		if err != nil {
			return err
		}
		return sh.syn.Define(def)
	case parts[3] == "enable":
		return sh.set.SetEnabled(parts[1], parts[2], text == "1")
	case parts[3] == "trigger":
		return sh.set.Write(parts[1], parts[2], text)
	}
	return syscall.ENOENT
}
