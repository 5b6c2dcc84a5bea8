package debuginfo

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/cbuild"
)

// linesOf opens a program's debug information.
func linesOf(t testing.TB, exe string) (*File, *elf.File) {
	t.Helper()
	e, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	f, err := New(func(name string) ([]byte, error) {
		if s := e.Section(name); s != nil {
			return s.Data()
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, e
}

// TestLines compares the lines of functions, and what is inlined there, with what addr2line says: for each version of DWARF, and
// both compilers.
func TestLines(t *testing.T) {
	for _, flags := range [][]string{
		{"-gdwarf-2", "-gno-strict-dwarf"}, {"-gdwarf-3"}, {"-gdwarf-4"}, {"-gdwarf-5"}, {"CC=clang++", "-gdwarf-4"}, {"CC=clang++", "-gdwarf-5"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			exe, err := cbuild.Build(os.DirFS("../vars/testdata"), ".", "books", append(flags, "-O2")...)
			if err != nil {
				t.Fatal(err)
			}
			f, e := linesOf(t, exe)
			syms, err := e.Symbols()
			if err != nil {
				t.Fatal(err)
			}
			var in strings.Builder
			var pcs []uint64
			for _, s := range syms {
				if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 {
					continue
				}
				for pc := s.Value; pc < s.Value+s.Size; pc += 3 {
					pcs = append(pcs, pc)
					fmt.Fprintf(&in, "0x%x\n", pc)
				}
			}
			tool := "addr2line"
			if flags[0] == "CC=clang++" {
				tool = "llvm-addr2line"
			}
			cmd := exec.Command(tool, "-a", "-i", "-e", exe)
			cmd.Stdin = strings.NewReader(in.String())
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			told, inlined := 0, 0
			for i, text := range strings.Split(string(out), "0x")[1:] {
				var want []string
				for _, l := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
					l, _, _ = strings.Cut(l, " (discriminator")
					if !strings.HasSuffix(l, "?") && !strings.HasSuffix(l, "??:0") {
						want = append(want, filepath.Base(l))
					}
				}
				var got []string
				ls, _ := f.Lines(pcs[i])
				for _, l := range ls {
					got = append(got, fmt.Sprintf("%s:%d", filepath.Base(l.File), l.Line))
				}
				if fmt.Sprint(want) != fmt.Sprint(got) {
					t.Errorf("%s 0x%x: %v, addr2line: %v", exe, pcs[i], got, want)
				}
				told += len(want)
				inlined += max(len(want)-1, 0)
			}
			t.Logf("%d addresses, %d lines, %d of what is inlined", len(pcs), told, inlined)
			if told < 300 || inlined < 10 {
				t.Errorf("%d lines, %d of what is inlined", told, inlined)
			}
		})
	}
}

// lineHeader is the head of a line table of version 5, up to its list of directories.
func lineHeader(rest ...byte) []byte {
	b := []byte{5, 0, 8, 0, 0, 0, 0, 0, 1, 1, 1, 0xfb, 14, 1}
	b[4] = byte(len(b) - 8 + len(rest))
	b = append(b, rest...)
	return append([]byte{byte(len(b)), 0, 0, 0}, b...)
}

// TestHostileLines refuses tables that say that they name more than they have room for.
func TestHostileLines(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	for name, b := range map[string][]byte{
		"directories without a form": lineHeader(append([]byte{0}, huge...)...),
		"directories":                lineHeader(append([]byte{1, 1, formString}, huge...)...),
		"a block":                    lineHeader(append([]byte{1, 1, formBlock, 1}, huge...)...),
		"a form":                     lineHeader(1, 1, 0x70, 1, 0, 0),
	} {
		p := lineProgram{f: &File{}, t: &lineTable{}, c: cursor{b: b}, left: maxLines}
		if err := p.read(); !errors.Is(err, errLines) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := append(bytes.Repeat([]byte{'a', 0}, 1000), 0)
	p := lineProgram{f: &File{}, t: &lineTable{}, c: cursor{b: many}, left: 500}
	if p.names(); p.left >= 0 || len(p.t.dirs) > 501 {
		t.Errorf("%d directories, %d left", len(p.t.dirs), p.left)
	}
	p = lineProgram{f: &File{}, t: &lineTable{}, c: cursor{b: lineHeader(0, 0, 0, 0)}, left: maxLines}
	if err := p.read(); err != nil {
		t.Errorf("a table without files: %v", err)
	}
}

// FuzzLines reads tables that may be anything: each is read to an end.
func FuzzLines(f *testing.F) {
	whole := realSections(f)
	f.Add(whole[".debug_line"], whole[".debug_line_str"])
	f.Add(lineHeader(0, 0, 0, 0), []byte{})
	f.Fuzz(func(t *testing.T, b, strs []byte) {
		p := lineProgram{f: &File{sect: sections{lineStr: strs}}, t: &lineTable{}, c: cursor{b: b}, left: maxLines}
		if p.read() == nil {
			p.t.at(0x1000)
			p.t.file(1)
		}
		if len(p.t.rows) > len(b)+1 || len(p.t.files) > len(b)+1 {
			t.Errorf("%d rows and %d files of %d bytes", len(p.t.rows), len(p.t.files), len(b))
		}
	})
}
