package oracle

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// filterFile is the filter file of an event of this machine's kernel that has the fields of filterProgram.
func filterFile(t *testing.T) string {
	t.Helper()
	const tracefs = "/sys/kernel/tracing/"
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("filter%d", os.Getpid())
	write := func(text string) error {
		f, err := os.OpenFile(tracefs+"uprobe_events", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(text)
		return err
	}
	if err := write("p:kpfilter/" + name + " " + exe + ":0x1000 u=%di:u64 i=%si:s32 c=%dx:u8 h=%cx:s16 s=+0(%di):string z=%di:x32\n"); err != nil {
		t.Fatalf("an event of the kernel's to compare with: %v", err)
	}
	t.Cleanup(func() {
		if err := write("-:kpfilter/" + name + "\n"); err != nil {
			t.Error(err)
		}
	})
	return tracefs + "events/kpfilter/" + name + "/filter"
}

// filterProgram has the same fields.
func filterProgram() *fetch.Program {
	number := func(name string, kind event.TypeKind, size int) fetch.Arg {
		return fetch.Arg{Name: name, Type: fetch.Type{Kind: kind, Size: size}, Store: fetch.StoreValue, Size: size}
	}
	return &fetch.Program{Args: []fetch.Arg{
		number("u", event.Unsigned, 8), number("i", event.Signed, 4), number("c", event.Unsigned, 1), number("h", event.Signed, 2),
		{Name: "s", Type: fetch.Type{Kind: event.String}, Store: fetch.StoreString},
		number("z", event.Hex, 4),
	}}
}

// TestFilterLanguage gives the same filters to this machine's kernel: what is accepted, and the text, the caret and the error number of
// what is not, must be the same.
func TestFilterLanguage(t *testing.T) {
	file, p := filterFile(t), filterProgram()
	refused := map[event.FilterCode]int{}
	accepted := 0
	for _, text := range append(filterTexts, randomFilters(3000)...) {
		_, ours := p.Filter(text, fetch.FilterEnv{Comm: true})
		var bad *event.FilterError
		if errors.As(ours, &bad) && bad.Why == "nothing follows the last &&" {
			continue // the kernel looks at memory in front of its program, and takes or refuses the filter by what it finds there
		}
		err := os.WriteFile(file, []byte(text), 0)
		told := readOnce(t, file)
		switch {
		case (err == nil) != (ours == nil):
			t.Errorf("%q: the kernel says %v (%s), we %v", text, err, told, ours)
		case err == nil:
			accepted++
		case !errors.As(ours, &bad):
			t.Errorf("%q: %v", text, ours)
		case bad.Detail()+"\n" != told: // the file ends each text with a newline of its own
			t.Errorf("%q: the kernel says\n%swe\n%s", text, told, bad.Detail())
		case !errors.Is(err, bad.Errno()):
			t.Errorf("%q: the kernel says %v, we %v", text, err, bad.Errno())
		default:
			refused[bad.Code]++
		}
	}
	if accepted < 80 || len(refused) < 14 {
		t.Errorf("%d accepted, %d refused for %d reasons: these show too little", accepted, refused, len(refused))
	}
}

// readOnce reads a file that gives all that it has to the first read, and nothing to others.
func readOnce(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1<<16)
	n, err := f.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

var filterTexts = []string{
	"u == 1", "u==1", " u  ==  1 ", "i < -5", "i < 5 && u > 3 || c == 0xff", "!(i == 1)", "!i == 1", "!!i == 1", "(i == 1", "i == 1)", "((i == 1)",
	"i == 1 &&", "i == 1 ||", "i == 1 || c == 1 &&", "i == 1 && c == 1 ||", "i == 1 && c == 1 &&", "i == 1 || c == 1 ||", "(i == 1 || c == 1) &&", "&& i == 1", "()", "(i == 1) && ()", "!", "(", ")", "i = 1", "i == 1 & c == 2", "i == 1 | c == 2", "i == 1 c == 2",
	"i ~ 1", "i ~ \"x\"", "s ~ \"x*\"", "s == x", "s == 'x'", "s == \"x", "s == 'x\"", "s == 5", "s < \"x\"", "s & \"x\"", "s != \"x\" && u & 7",
	"nothing == 1", "u", "u ==", "u == ", "u == -1", "i == -2147483649", "i == 99999999999999999999", "u == 18446744073709551615", "u == 18446744073709551616",
	"u == 0x", "u == 010", "u == 08", "u == 0xffffffffffffffffffffffff", "u == 1x", "common_pid == 1", "comm == \"x\"", "COMM ~ \"x*\"", "comm == 1", "common_type > 0", "common_flags & 1", "CPU == 0", "cpu < 4",
	"CPU == CPUS{0-0}", "CPU & CPUS{0,0}", "CPU != CPUS{0}", "CPU < CPUS{0}", "CPU & CPUS", "CPU & CPUS{", "CPU & CPUS{}", "CPU & CPUS{x}", "u & CPUS{0}", "s & CPUS{0}",
	"__probe_ip != 0", "__probe_func == 0", "s.ustring == \"a\"", "u.function == 1", "c.function == 1", "u.function < 1", "u.function == nosuchfunction",
	"s == \"" + strings.Repeat("a", 254) + "\"", "s == \"" + strings.Repeat("a", 255) + "\"", "s == \"" + strings.Repeat("a", 256) + "\"", "s ~ \"!a*\"", "s ~ \"12*\"", "s ~ \"\"",
	"i > 1 && (c < 2 || (h == 3 && z == 4)) && !(s == \"a(b\")", "u == 1)(", "i >= 1 && h <= -1 && z != 0x10", "i=1", "i=!1", "i =~ 1",
}

// randomFilters are words of the language in any order, and filters with one of them changed.
func randomFilters(n int) []string {
	words := []string{"u", "i", "c", "h", "s", "z", "==", "!=", "<", "<=", ">", ">=", "&", "~", "&&", "||", "!", "(", ")", "1", "-1", "0x7f", "\"a*\"", "'b'", "CPU", "nothing", " ", "\t"}
	r := rand.New(rand.NewPCG(1, 2))
	var out []string
	for i := range n {
		var b strings.Builder
		if i%2 == 0 {
			for range 1 + r.IntN(9) {
				b.WriteString(words[r.IntN(len(words))])
				if r.IntN(2) == 0 {
					b.WriteByte(' ')
				}
			}
		} else {
			text := filterTexts[r.IntN(len(filterTexts))]
			at := r.IntN(len(text) + 1)
			b.WriteString(text[:at] + words[r.IntN(len(words))] + text[min(at+r.IntN(3), len(text)):])
		}
		text := b.String()
		_, list, _ := strings.Cut(text, "CPUS{")                                                                   // the kernel knows how many CPUs there are
		if bare := strings.TrimSpace(text); bare != "" && bare != "0" && !strings.ContainsAny(list, "123456789") { // "0" clears the filter
			out = append(out, text)
		}
	}
	return out
}
