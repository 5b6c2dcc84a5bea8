package kmod

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// document is Linux's Kprobes documentation of 2005, whose sections 8 to 10 are modules. The copy has numbers before its lines, and lost lines of one
// and two characters.
const document = "../../../shared/documents/002_c5e6b781c46869a3.txt"

// printed gives the lines of a module as the document has them, by their numbers.
func printed(t *testing.T, from, to string) (lines map[int]string, first, last int) {
	t.Helper()
	b, err := os.ReadFile(document)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the documents are not here: the modules of this package's own stand for them")
	}
	if err != nil {
		t.Fatal(err)
	}
	lines = map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\d+) (.*)$`).FindAllStringSubmatch(string(b), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(m[2], "\u00a0", " ")
		switch {
		case text == from:
			first = n
		case first > 0 && last == 0 && text == to:
			last = n
		}
		if first > 0 && last == 0 || n == last {
			lines[n] = text
		}
	}
	if first == 0 || last == 0 {
		t.Fatalf("no lines from %q to %q", from, to)
	}
	return lines, first, last
}

// restored puts the lines of one and two characters back: the braces around functions and structs, the start of a comment. Others were blank.
func restored(lines map[int]string, first, last int) string {
	next := func(n int) string {
		for ; n <= last; n++ {
			if lines[n] != "" {
				return lines[n]
			}
		}
		return ""
	}
	var out []string
	open := "" // what ends the block that is open
	before := ""
	for n := first; n <= last; n++ {
		text, ok := lines[n]
		switch {
		case ok:
			before = text
			if strings.HasSuffix(text, "= {") {
				open = "};"
			}
		case strings.HasPrefix(lines[n+1], " *") && open == "":
			text = "/*"
		case open == "" && strings.HasSuffix(before, ")") && strings.HasPrefix(next(n), " "):
			text, open, before = "{", "}", ""
		case open != "" && !strings.HasPrefix(next(n), " "):
			text, open = open, ""
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n") + "\n"
}

// lost is a text without its lines of one and two characters.
func lost(text string) (out []string) {
	for _, l := range strings.Split(text, "\n") {
		if len(l) > 2 {
			out = append(out, l)
		}
	}
	return out
}

var documented = map[string][2]string{
	"kprobe-example":    {"/*kprobe_example.c*/", `MODULE_LICENSE("GPL");`},
	"jprobe-example":    {"/*jprobe-example.c */", `MODULE_LICENSE("GPL");`},
	"kretprobe-example": {"/*kretprobe-example.c*/", `MODULE_LICENSE("GPL");`},
}

// TestDocuments compiles the modules of the document as they are printed, but for what the copy lost, without a warning.
func TestDocuments(t *testing.T) {
	for name, ends := range documented {
		lines, first, last := printed(t, ends[0], ends[1])
		text := restored(lines, first, last)
		var want []string
		for n := first; n <= last; n++ {
			if lines[n] != "" {
				want = append(want, lines[n])
			}
		}
		if got := strings.Join(lost(text), "\n"); got != strings.Join(want, "\n") {
			t.Errorf("%s: more was changed than was lost:\n%s", name, got)
		}
		for _, cc := range compilers {
			compile(t, cc, name, text, "-Werror")
		}
	}
}

var compilers = []string{"gcc", "clang"}

// compile compiles a module, and gives the path of its object.
func compile(t testing.TB, cc, name, text string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := WriteHeaders(filepath.Join(dir, "include")); err != nil {
		t.Fatal(err)
	}
	file, object := filepath.Join(dir, name+".c"), filepath.Join(dir, name+".o")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(append(Flags(Name(name), filepath.Join(dir, "include")), flags...), "-c", "-o", object, file)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%s %s: %v\n%s", cc, strings.Join(args, " "), err, out)
	}
	return object
}
