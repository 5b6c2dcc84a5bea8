package arch_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What only a processor's own files may name: identifiers, words in strings, bytes of instructions, how far a jump
// leads, and the package of the processor itself, for which others have package native.
var (
	names = regexp.MustCompile(`(?i)^([re][abcd]x|[re][sd]i|[re][bs]p|r1[0-5]|[re]ip|orig_?rax|[xyz]mm\d*|[re]flags|cr[0234]|int3|jmp|jcc|endbr(64)?|rel32|disp32|modrm|rdpid|rdtscp?|sysret|iretq?|nop5|swapgs)$|` +
		`(?-i:[FG]SBase|R[ABCD]X|R[SD]I\b|R[BS]P|RIP|R1[0-5]\b|XMM|YMM|ZMM|Rel32|Int3\b|Endbr|RDPID|CR3)`)
	words  = regexp.MustCompile(`\b[re](ax|bx|cx|dx|si|di|bp|sp|ip)\b|\br1[0-5]\b|\b[xyz]mm\d+\b|%[fg]s:|\b[FG]S base\b|(?i)\bcr3\b|\bint3\b|\bendbr`)
	bytes  = []string{"0xcc", "0xe8", "0xe9", "0xeb", "0xc3"}
	reach  = "31"
	amd64  = "kprobes.dev/kprobes/internal/arch/amd64"
	exempt = []string{"internal/arch/amd64/", "internal/arch/native/", "internal/arch/objfile/", "vet/", "samples/"}
)

// known are files that still name them, and what of. A file that does so no more goes from here.
var known = map[string]string{
	"cmd/kprobe/bench_rows.go": "a row is named by the instruction that is probed",
	// A guest is x86-64 so far, on any host.
	"internal/guest/kernel/preempted.go": "calls in the kernel's text",
	"internal/guest/kernel/recover.go":   "the kernel's own patches",
	"internal/guest/kernel/tables.go":    "the kernel's own patches",
	"target/guest/qemu/roots_linux.go":   "what QEMU's monitor calls a register",
}

// TestNames: only the files of a processor name its registers, opcodes, segments and reach. Tests may.
func TestNames(t *testing.T) {
	const root = "../.."
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() && (d.Name() == "testdata" || rel != "." && strings.HasPrefix(d.Name(), ".") || slices.Contains(exempt, rel+"/")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") || strings.HasSuffix(rel, "_amd64.go") {
			return nil
		}
		finds, err := namesIn(path)
		if len(finds) > 0 {
			found[rel] = true
			if known[rel] == "" {
				t.Errorf("%s: only files of a processor name such (internal/arch/native has neutral names):\n\t%s", rel, strings.Join(finds, "\n\t"))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Sorted(maps.Keys(known)) {
		if !found[file] {
			t.Errorf("%s names nothing of a processor's any more: it can go from the list", file)
		}
	}
}

// namesIn lists what a file names.
func namesIn(path string) (finds []string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, 0)
	if err != nil {
		return nil, err
	}
	say := func(n ast.Node, what string) {
		finds = append(finds, fmt.Sprintf("line %d: %s", fset.Position(n.Pos()).Line, what))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			if n.Path.Value == strconv.Quote(amd64) {
				say(n, "imports "+amd64)
			}
			return false
		case *ast.Ident:
			if names.MatchString(n.Name) {
				say(n, n.Name)
			}
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			if n.Kind == token.STRING && err == nil && words.MatchString(text) {
				say(n, n.Value)
			}
			if n.Kind == token.INT && slices.Contains(bytes, strings.ToLower(n.Value)) {
				say(n, n.Value)
			}
		case *ast.BinaryExpr:
			if x, ok := n.X.(*ast.BinaryExpr); ok && n.Op == token.SUB && x.Op == token.SHL {
				if by, ok := x.Y.(*ast.BasicLit); ok && by.Value == reach {
					say(n, "1<<31 - …: the reach of a jump")
				}
			}
		}
		return true
	})
	return finds, nil
}
