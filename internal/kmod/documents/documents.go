// Package documents has the modules of Linux's Kprobes documentation of 2005 for tests: its sections 8 to 10. The copy that it reads has numbers before its
// lines, and lost lines of one and two characters, which are put back.
package documents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// file is the document, beside the root of the repository.
const file = "../shared/documents/002_c5e6b781c46869a3.txt"

// ErrNone says that the documents are not here.
var ErrNone = errors.New("the documents are not beside the repository")

// Names are those of the modules.
var Names = []string{"kprobe-example", "jprobe-example", "kretprobe-example"}

var ends = map[string][2]string{
	"kprobe-example":    {"/*kprobe_example.c*/", `MODULE_LICENSE("GPL");`},
	"jprobe-example":    {"/*jprobe-example.c */", `MODULE_LICENSE("GPL");`},
	"kretprobe-example": {"/*kretprobe-example.c*/", `MODULE_LICENSE("GPL");`},
}

// Module gives a module as it is printed, but for what the copy has lost. root is the repository's. The error tells of more that was changed, or is ErrNone.
func Module(root, name string) (text string, err error) {
	lines, first, last, err := printed(filepath.Join(root, file), ends[name])
	if err != nil {
		return "", err
	}
	text = restored(lines, first, last)
	var want []string
	for n := first; n <= last; n++ {
		if lines[n] != "" {
			want = append(want, lines[n])
		}
	}
	if got := kept(text); !slices.Equal(got, want) {
		return "", fmt.Errorf("%s: more was changed than was lost:\n%s", name, strings.Join(got, "\n"))
	}
	return text, nil
}

// printed gives the lines of a module as the document has them, by their numbers.
func printed(path string, ends [2]string) (lines map[int]string, first, last int, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, 0, ErrNone
	}
	if err != nil {
		return nil, 0, 0, err
	}
	lines = map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\d+) (.*)$`).FindAllStringSubmatch(string(b), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, 0, 0, err
		}
		text := strings.ReplaceAll(m[2], "\u00a0", " ")
		switch {
		case text == ends[0]:
			first = n
		case first > 0 && last == 0 && text == ends[1]:
			last = n
		}
		if first > 0 && last == 0 || n == last {
			lines[n] = text
		}
	}
	if first == 0 || last == 0 {
		return nil, 0, 0, fmt.Errorf("%s: no lines from %q to %q", path, ends[0], ends[1])
	}
	return lines, first, last, nil
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

// kept is a text without its lines of one and two characters.
func kept(text string) (out []string) {
	for _, l := range strings.Split(text, "\n") {
		if len(l) > 2 {
			out = append(out, l)
		}
	}
	return out
}
