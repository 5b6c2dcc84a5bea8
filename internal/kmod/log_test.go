package kmod

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFormats has printk's records, snprintf's text in a module, and what libc's printf makes of the same formats and arguments.
func TestFormats(t *testing.T) {
	for _, cc := range compilers {
		told := formatsBy(t, cc)
		if len(told["p"]) < 15 || len(told["p"]) != len(told["s"]) || len(told["p"])+1 != len(told["r"]) {
			t.Fatalf("%s: %d, %d and %d formats", cc, len(told["p"]), len(told["s"]), len(told["r"]))
		}
		for i, want := range told["p"] {
			if got := told["s"][i]; got != want {
				t.Errorf("%s: snprintf gives %q, and libc's %q", cc, got, want)
			}
			if _, got, err := Line([]byte(told["r"][i]), nil, nil); got != want || err != nil {
				t.Errorf("%s: printk %q, %v, and libc's printf %q", cc, got, err, want)
			}
			format := (&reader{b: []byte(told["r"][i])[8:]}).text()
			if got, want := arguments(format), binary.LittleEndian.Uint64([]byte(told["k"][i])); got != want {
				t.Errorf("%s: arguments of %q: %#x, and in C %#x", cc, format, got, want)
			}
		}
		if got := told["n"]; len(got) != 2 || !strings.HasPrefix(got[0], "0123\x00") || len(got[0]) != 10 || got[1] != "0123" {
			t.Errorf("%s: a text that is too long: %q", cc, got)
		}
		last := told["r"][len(told["r"])-1]
		if _, got, err := Line([]byte(last), nil, nil); got != "(efault) (null) 7\n" || err != nil {
			t.Errorf("%s: bad pointers: %q, %v", cc, got, err)
		}
	}
}

// formatsBy runs the program of formats.h.
func formatsBy(t *testing.T, cc string) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	object := compile(t, cc, "formats", own(t, "formats_module"), "-iquote", "testdata", "-fpie", "-mcmodel=small", "-Wno-format")
	exe := filepath.Join(dir, "formats")
	if out, err := exec.Command(cc, "-O1", "-w", "-o", exe, "testdata/formats_main.c", object, "-Wl,--unresolved-symbols=ignore-all").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := exec.Command(exe).Output()
	if err != nil {
		t.Fatal(err)
	}
	told := map[string][]string{}
	for len(b) > 9 {
		n := binary.LittleEndian.Uint64(b[1:])
		told[string(b[0])] = append(told[string(b[0])], string(b[9:9+n]))
		b = b[9+n:]
	}
	return told
}

// TestHeaders runs what the headers promise.
func TestHeaders(t *testing.T) {
	for _, cc := range compilers {
		for _, level := range []string{"-O2", "-O0"} {
			object := compile(t, cc, "headers", own(t, "headers_module"), "-fpie", "-mcmodel=small", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", level)
			exe := filepath.Join(t.TempDir(), "headers")
			if out, err := exec.Command(cc, "-w", "-no-pie", "-o", exe, "testdata/headers_main.c", object, "-Wl,--unresolved-symbols=ignore-all").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if out, err := exec.Command(exe).CombinedOutput(); err != nil || string(out) != "0\n" {
				t.Errorf("%s %s: line %s of headers_module.c: %v", cc, level, out, err)
			}
		}
	}
}

// Each header can be the only one.
func TestHeadersAlone(t *testing.T) {
	var text strings.Builder
	err := fs.WalkDir(Headers(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		compile(t, "gcc", "alone", "#include <"+name+">\nint alone;\n")
		fmt.Fprintf(&text, "#include <%s>\n", name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, cc := range compilers {
		compile(t, cc, "together", text.String(), "-Wextra", "-Wno-unused-parameter")
	}
}

// words makes a record.
func words(all ...any) (b []byte) {
	for _, v := range all {
		switch v := v.(type) {
		case int:
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		case string:
			b = binary.LittleEndian.AppendUint64(b, uint64(len(v)))
			b = append(b, v...)
			b = append(b, make([]byte, -len(v)&7)...)
		}
	}
	return b
}

// Levels, pointers, symbols, and records that nobody writes.
func TestLine(t *testing.T) {
	formats := map[uint64]string{0x1000: "\x016%d of %s\n", 0x1010: "\x01c at %p %pS %px\n", 0x1020: "%s"}
	symbol := func(addr uint64) string { return fmt.Sprintf("work+%#x", addr) }
	for _, c := range []struct {
		record []byte
		level  Level
		text   string
		bad    bool
	}{
		{words(0x1000, 3, "four"), 6, "3 of four\n", false},
		{words(0x1010, 0x55, 0x66, 0x77), LevelContinue, " at 0000000000000055 work+0x66 0000000000000077\n", false},
		{words(0, "\x013oops %d", 5), 3, "oops 5", false},
		{words(0, "none"), LevelDefault, "none", false},
		{words(0, "%d %d", 1), LevelDefault, "1 ", false}, // the record was full
		{words(0, "%*d", 1<<30, 1), LevelDefault, strings.Repeat(" ", 1023) + "1", false},
		{words(0, "%.*d", 1<<30, 1), LevelDefault, strings.Repeat("0", 1024), false},
		{words(0x9999), 0, "", true},
		{nil, 0, "", true},
		{words(0x1020, 100), LevelDefault, "", true}, // a string that is longer than the record
	} {
		level, text, err := Line(c.record, formats, symbol)
		if level != c.level && err == nil || text != c.text || errors.Is(err, ErrRecord) != c.bad {
			t.Errorf("% x: level %d, %q, %v", c.record, level, text, err)
		}
	}
}

// Any bytes are read as a record, and as a format, without harm.
func FuzzLine(f *testing.F) {
	f.Add(words(0, "%-*.*s %08lx %pS", 5, 2, "abc", 7, 8))
	f.Add(words(0x1000, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, text, err := Line(b, map[uint64]string{0x1000: "%s %d"}, func(uint64) string { return "sym" })
		if len(text) > 2*maxWidth*(len(b)+10) || err != nil && !errors.Is(err, ErrRecord) {
			t.Errorf("%d bytes of text, %v", len(text), err)
		}
		arguments(string(b))
	})
}

// The formats of a module are told to it, and known by their addresses.
func TestModuleFormats(t *testing.T) {
	o := parsed(t, compile(t, "gcc", "all", own(t, "all")))
	l, im := linked(t, o, 0x40500000)
	formats := im.Formats(l)
	found := 0
	for at, text := range formats {
		if strings.HasPrefix(text, "\x016all: %lu after %lld ns") {
			found++
			b := im.Bytes[Data][at-im.At[Data]:]
			if got := binary.LittleEndian.Uint64(b[8:]); got != argWord|argWord<<2|argWord<<4 {
				t.Errorf("arguments %#x", got)
			}
		}
		if strings.Contains(text, "%.3s") {
			t.Errorf("%q bounds a string, and is not looked at when it is printed", text)
		}
	}
	if found != 1 || len(formats) < 7 {
		t.Errorf("%d formats, %d of them the one", len(formats), found)
	}
}

func TestMain(m *testing.M) {
	for _, cc := range compilers {
		if _, err := exec.LookPath(cc); err != nil {
			fmt.Fprintln(os.Stderr, "install gcc and clang, as ./test does:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
