package amd64

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// wideText matches what objdump prints for an instruction of the legacy maps that uses
// x87, MMX, 3DNow! or the extended state as a whole.
var wideText = regexp.MustCompile(`%mm[0-7]|%st|^((rex|data16|repn?z|addr32|lock)\S* )*(f[a-z0-9]|emms|xsave|xrstor|xgetbv|xsetbv)`)

// segmentText matches prefixes that look like x87.
var segmentText = regexp.MustCompile(`\b[c-gs]s `)

// moreText matches what is wide without naming it: conversions from MMX that read memory
// (those to float leave x87 mode) and 3DNow! with a wrong prefix; and what is taken for wide
// and is not: transactions, enclaves and virtual machines, next to xgetbv in the table.
var moreText = regexp.MustCompile(`^(((data16|repn?z) )*(cvtpi2p|pf)|xend|xtest|vmfunc|enclu|wrmsrns|rdmsrlist)`)

// vectorText matches what uses the vector registers or their control word, which some do without naming them.
var vectorText = regexp.MustCompile(`%[xyz]mm|mxcsr|cvtt?s[sd]2si|aes|encodekey`)

// TestWideInstructions compares all instructions of the legacy maps with what objdump says
// of them.
func TestWideInstructions(t *testing.T) {
	const slot = 16
	var code []byte
	for _, prefix := range [][]byte{nil, {0x66}, {0xf3}, {0xf2}} {
		for _, escape := range [][]byte{nil, {0x0f}, {0x0f, 0x38}, {0x0f, 0x3a}} {
			for op := range 256 {
				for modrm := 0; modrm < 256; modrm += 8 {
					b := append(append(append([]byte(nil), prefix...), escape...), byte(op), byte(modrm|1))
					code = append(code, append(b, bytes.Repeat([]byte{0x90}, slot-len(b))...)...)
				}
			}
		}
	}
	for i := range 8 * 8 { // VEX and EVEX, XMM registers only
		code = append(code, 0xc5, 0xf8, 0x28, byte(0xc0+i), 0x62, 0xf1, 0x7c, 0x08, 0x28, byte(0xc0+i), 0x90, 0x90, 0x90, 0x90, 0x90, 0x90)
	}
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(debianTool(t, "objdump", "binutils"), "-D", "-z", "-w", "-b", "binary", "-m", "i386:x86-64", "-M", "intel64",
		"--no-show-raw-insn", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[bool]int{}
	for line := range strings.Lines(string(out)) {
		at, text, ok := strings.Cut(line, ":\t")
		addr, err := strconv.ParseUint(strings.TrimSpace(at), 16, 64)
		if !ok || err != nil || addr%slot != 0 || strings.Contains(text, "(bad)") {
			continue
		}
		in, err := Decode(code[addr:])
		if err != nil {
			continue
		}
		wide := in.wide()
		seen[wide]++
		want := in.Enc != EncLegacy || wideText.MatchString(segmentText.ReplaceAllString(text, ""))
		if wide != want && !(wide && moreText.MatchString(text)) {
			t.Errorf("% x: %v, which is %s", code[addr:][:in.Len], wide, text)
		}
		if general := !vectorText.MatchString(text) && !want; in.general() != general && !(wide && moreText.MatchString(text)) {
			t.Errorf("% x: %v that it uses general registers alone: %s", code[addr:][:in.Len], in.general(), text)
		}
	}
	if seen[true] < 4000 || seen[false] < 50000 {
		t.Errorf("%v instructions were compared", seen)
	}
}

// TestWideFunctions asks it of functions of a Go program, before and after Release, and
// of others.
func TestWideFunctions(t *testing.T) {
	im := openImage(t, buildGo(t, "-buildmode=exe"))
	for _, c := range []struct {
		name     string
		go_, abi bool
		want     bool
	}{
		{"runtime.memmove", true, false, true},
		{"main.run", true, false, false},
		{"runtime.mallocgc", true, false, false},
		{"runtime.mallocgc", true, true, true},
		{"main.run", false, false, true},
	} {
		in := im.fn(im.find(t, c.name), c.go_)
		fn, err := X86.Analyse(&arch.Func{Name: in.Name, Addr: in.Addr, Code: in.Code, Go: c.go_, ABI0: c.abi, Mem: in.Mem, Inside: in.Inside})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := fn.UsesWideVectors(); got != c.want {
				t.Errorf("%s, Go %v, ABI0 %v: %v", c.name, c.go_, c.abi, got)
			}
			fn.Release()
		}
	}
}

// TestWideInParts looks at moved parts too, and takes what it can not read for wide.
func TestWideInParts(t *testing.T) {
	const vzeroupper, bad = "c5f877 c3", "06"
	for _, c := range []struct {
		name, code, part string
		want             bool
	}{
		{"plain", "0f58c1 660fefc0 c3", "c3", false},
		{"body", vzeroupper, "c3", true},
		{"part", "c3", vzeroupper, true},
		{"not_code", "7401 c3" + bad, "c3", true},
	} {
		fn, err := X86.Analyse(&arch.Func{
			Name: c.name, Go: true, Addr: 0x1000, Code: hexBytes(t, c.code),
			Parts: []arch.Part{{Addr: 0x2000, Code: hexBytes(t, c.part)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := fn.UsesWideVectors(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
