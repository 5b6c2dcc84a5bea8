package spanset

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// files are the sets that come with the command: a file for each, with a / in the name as a -.
//
//go:embed sets/*.txt
var files embed.FS

// Names lists the sets that come with the command.
func Names() (out []string) {
	all, err := fs.Glob(files, "sets/*.txt")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for _, f := range all {
		out = append(out, strings.ReplaceAll(strings.TrimSuffix(path.Base(f), ".txt"), "-", "/"))
	}
	slices.Sort(out)
	return out
}

// Text is the file of a set that comes with the command.
func Text(name string) ([]byte, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("no set is called %q; there are %s. A file of your own ends in .txt, or begins with / or a dot", name, strings.Join(Names(), ", "))
	}
	return files.ReadFile("sets/" + strings.ReplaceAll(name, "/", "-") + ".txt")
}

// IsFile says whether the name of a set is that of a file.
func IsFile(name string) bool {
	return strings.HasSuffix(name, ".txt") || strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".")
}

// File reads the file of a set, of which it reads no more than is needed to see that it is too large (Read says so).
func File(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}

// Load reads a set that comes with the command, or a file.
func Load(name string) ([]*Call, error) {
	get := Text
	if IsFile(name) {
		get = File
	}
	text, err := get(name)
	if err != nil {
		return nil, err
	}
	return Read(name, text)
}
