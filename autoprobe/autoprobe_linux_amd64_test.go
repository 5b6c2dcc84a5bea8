package autoprobe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	"kprobes.dev/kprobes/trace"
)

// vector makes an auxiliary vector.
func vector(words ...uint64) (b []byte) {
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

func plain() ([]byte, error) { return vector(3, 0x400040, atSecure, 0, 0, 0), nil }

func TestStart(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "2")
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := trace.New(core, nil)
	defer func() {
		if err := errors.Join(in.Close(), core.Close(nil)); err != nil {
			t.Error(err)
		}
	}()
	var words bytes.Buffer
	start("p:look,f_push,v=%di;;p:gone,f_lea;p:bad,nosuch,x=%di; r:g/found,f_push,v=$retval;-:gone;-:nosuch;",
		plain, func() (*trace.Instance, error) { return in, nil }, &words)
	var defs bytes.Buffer
	if err := in.WriteDefinitions(&defs); err != nil {
		t.Fatal(err)
	}
	if got, want := defs.String(), "p:kprobes/look f_push v=%di\nr:g/found f_push v=$retval\n"; got != want {
		t.Errorf("definitions:\n%s", got)
	}
	for _, want := range []string{"Failed to add event(-22): p:bad nosuch x=%di\n", "Failed to add event(-2): -:nosuch\n"} {
		if !strings.Contains(words.String(), want) {
			t.Errorf("no %q in:\n%s", want, &words)
		}
	}
	if n := strings.Count(words.String(), "Failed"); n != 2 {
		t.Errorf("%d failures:\n%s", n, &words)
	}
	before := prog.Counts("count")
	n := prog.Counts("go 20")["f_push"] - before["f_push"]
	var profile bytes.Buffer
	if err := in.WriteProfile(&profile); err != nil {
		t.Fatal(err)
	}
	if got, want := profile.String(), hit.ProfileLine("look", n, 0)+hit.ProfileLine("found", n, 0); got != want {
		t.Errorf("profile:\n%swant:\n%s", got, want)
	}
}

// Without the variable, or with rights of its own, the program is not touched.
func TestLeavesAlone(t *testing.T) {
	tests := []struct {
		name, text string
		auxv       func() ([]byte, error)
		words      string
	}{
		{"no variable", "", plain, ""},
		{"set-user-ID", "p f", func() ([]byte, error) { return vector(atSecure, 1, 0, 0), nil }, "ignored"},
		{"no word about it", "p f", func() ([]byte, error) { return vector(3, 1, 0, 0), nil }, "ignored"},
		{"cut off", "p f", func() ([]byte, error) { return vector(atSecure), nil }, "ignored"},
		{"unreadable", "p f", func() ([]byte, error) { return nil, errors.New("no") }, "ignored"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var words bytes.Buffer
			start(tt.text, tt.auxv, func() (*trace.Instance, error) {
				t.Error("the target is opened")
				return nil, errors.New("no target")
			}, &words)
			if !strings.Contains(words.String(), tt.words) || tt.words == "" && words.Len() > 0 {
				t.Errorf("said: %q", &words)
			}
		})
	}
	var words bytes.Buffer
	start("p f", plain, func() (*trace.Instance, error) { return nil, errors.New("no target here") }, &words)
	if !strings.Contains(words.String(), "no target here") {
		t.Errorf("said: %q", &words)
	}
}

// The vector of this very process, which no one has given rights.
func TestOwnVector(t *testing.T) {
	b, err := auxv()
	if err != nil || privileged(b) {
		t.Errorf("this test runs with rights of its own: %v", err)
	}
}

func TestCommands(t *testing.T) {
	got := commands(" p:a,f , x=%di;\n;r,g\nh;")
	if want := []string{"p:a f   x=%di", "r g h"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
