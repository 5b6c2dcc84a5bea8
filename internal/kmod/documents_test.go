package kmod

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/kmod/documents"
)

// document gives a module of Linux's documentation.
func document(t *testing.T, name string) string {
	t.Helper()
	text, err := documents.Module("../..", name)
	if errors.Is(err, documents.ErrNone) {
		t.Skip("the documents are not here: the modules of this package's own stand for them")
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDocuments compiles the modules of the document as they are printed, but for what the copy lost, without a warning.
func TestDocuments(t *testing.T) {
	for _, name := range documents.Names {
		text := document(t, name)
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
