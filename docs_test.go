package kprobes_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the documents name.
var (
	docPath  = regexp.MustCompile(`\b(?:internal|target|cmd|docs|samples|trace|event|debughttp|autoprobe|vet)/[\w./-]*\w`)
	docOther = regexp.MustCompile(`https?://\S+|\S*\*\S*|[\w/-]*\b(?:NAME|VERB)\b\S*`) // elsewhere, and patterns
	docFile  = regexp.MustCompile(`(?:^|[\s(|,;:])([a-z]\w*\.(?:go|md))\b`)
	docTest  = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	docName  = regexp.MustCompile("`(?:[a-z]\\w*\\.)?((?:\\w+\\.)?[A-Za-z]\\w*)`")
	docIn    = regexp.MustCompile("((?:`[^`]+`[^`|.;:]{0,12})*`[^`]+`) (?:in |\\(|\\(in )(?:[\\w/]+/)?(\\w+\\.go)")
	docTable = map[string]string{ // the tables whose names in backquotes are those of declarations
		"docs/ARCHITECTURE.md": "## The way of a registration",
		"docs/HACKING.md":      "## What decides what",
	}
)

// TestDocumentsNameWhatIsThere: files, tests and, in the tables that lead through the code, declarations that
// the documents name exist, and a declaration is in the file that is named with it.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	src := declared(t)
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, doc := range append(docs, "README.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		inTable, i := false, 0
		for line := range strings.Lines(string(text)) {
			i++
			if strings.HasPrefix(line, "## ") {
				inTable = strings.TrimSpace(line) == docTable[doc]
			}
			line = docOther.ReplaceAllString(line, "")
			wrong := func(what, name string) { t.Errorf("%s:%d: %s %s is not there", doc, i, what, name) }
			for _, p := range docPath.FindAllString(line, -1) {
				if checked++; !src.path(p) {
					wrong("file", p)
				}
			}
			for _, m := range docFile.FindAllStringSubmatch(line, -1) {
				if checked++; !src.files[m[1]] {
					wrong("file", m[1])
				}
			}
			for _, name := range docTest.FindAllString(line, -1) {
				if checked++; !src.test(name) {
					wrong("test", name)
				}
			}
			for _, m := range docIn.FindAllStringSubmatch(line, -1) {
				for _, n := range docName.FindAllStringSubmatch(m[1], -1) {
					if in := src.names[n[1]]; in != nil && !in[m[2]] {
						wrong("declaration", n[1]+" in "+m[2])
					}
				}
			}
			if !inTable || !strings.HasPrefix(line, "|") {
				continue
			}
			for _, m := range docName.FindAllStringSubmatch(line, -1) {
				if checked++; src.names[m[1]] == nil && !src.files[strings.Trim(m[0], "`")] {
					wrong("declaration", m[1])
				}
			}
		}
	}
	if checked < 300 {
		t.Errorf("%d names were checked", checked)
	}
}

// source is what the repository has: base names of files, and what is declared, with methods and fields also behind
// their types' names, and the base names of the files that declare it.
type source struct {
	files map[string]bool
	names map[string]map[string]bool
}

func (s *source) declares(file, name string) {
	if s.names[name] == nil {
		s.names[name] = map[string]bool{}
	}
	s.names[name][file] = true
}

// path says whether a path of the documents is one of the repository: a file, a directory, or a name of a package.
func (s *source) path(p string) bool {
	if _, err := os.Stat(p); err == nil {
		return true
	}
	dir, base := filepath.Split(p)
	pkg, name, _ := strings.Cut(base, ".")
	st, err := os.Stat(dir + pkg)
	return err == nil && st.IsDir() && s.names[name] != nil
}

// test says whether a test, or a group of tests that begin so, is one of the repository.
func (s *source) test(name string) bool {
	for n := range s.names {
		if strings.HasPrefix(n, name) {
			return true
		}
	}
	return false
}

// declared parses all Go files of the repository.
func declared(t *testing.T) *source {
	t.Helper()
	s := &source{map[string]bool{}, map[string]map[string]bool{}}
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		s.files[d.Name()] = true
		if filepath.Ext(p) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(set, p, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil // a file of a test's data need not be Go
		}
		s.file(d.Name(), f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *source) file(file string, f *ast.File) {
	s.declares(file, f.Name.Name)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			s.declares(file, d.Name.Name)
			if d.Recv != nil {
				s.declares(file, receiver(d.Recv.List[0].Type)+"."+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				s.spec(file, spec)
			}
		}
	}
}

func (s *source) spec(file string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			s.declares(file, n.Name)
		}
	case *ast.TypeSpec:
		s.declares(file, spec.Name.Name)
		var members *ast.FieldList
		switch u := spec.Type.(type) {
		case *ast.StructType:
			members = u.Fields
		case *ast.InterfaceType:
			members = u.Methods
		default:
			return
		}
		for _, m := range members.List {
			for _, n := range m.Names {
				s.declares(file, n.Name)
				s.declares(file, spec.Name.Name+"."+n.Name)
			}
		}
	}
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
