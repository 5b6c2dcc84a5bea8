package amd64

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// pcRelative finds the address that the text of an instruction names: the operand
// of a direct branch, which a symbol follows, or the comment behind a RIP-relative
// operand.
func pcRelative(text []byte) (uint64, bool) {
	if i := bytes.LastIndex(text, []byte(" # ")); i >= 0 {
		text, _ = bytes.CutPrefix(text[i+3:], []byte("0x"))
		return leadingHex(text)
	}
	target, _, ok := bytes.Cut(text, []byte(" <"))
	if !ok {
		return 0, false
	}
	return leadingHex(target[bytes.LastIndexByte(target, ' ')+1:])
}

// leadingHex reads the number before a space or the end.
func leadingHex(s []byte) (uint64, bool) {
	s, _, _ = bytes.Cut(s, []byte(" "))
	v, err := strconv.ParseUint(string(s), 16, 64)
	return v, err == nil
}

// compareLine says how the decoder and objdump differ on a line, "" if they agree.
func compareLine(l objdumpLine, code []byte) string {
	in, err := Decode(code)
	if err != nil {
		return err.Error()
	}
	if int(in.Len) != l.len {
		return fmt.Sprintf("length %d", in.Len)
	}
	got, gotOK := in.Target(l.addr)
	want, wantOK := pcRelative(l.text)
	if gotOK != wantOK || got != want {
		return fmt.Sprintf("target %#x (%v), not %#x (%v)", got, gotOK, want, wantOK)
	}
	return ""
}

// differences are the reasons for which objdump may differ, each with the exact
// condition.
var differences = []struct {
	why string
	is  func(l objdumpLine, code []byte) bool
}{
	{"objdump knows no such instruction: data, or later than this objdump", func(l objdumpLine, _ []byte) bool {
		return bytes.Contains(l.text, []byte("(bad)"))
	}},
	{"objdump stops at a symbol in the middle of an instruction", func(l objdumpLine, _ []byte) bool {
		return bytes.HasPrefix(l.text, []byte(".byte "))
	}},
	{"objdump gives a REX that another prefix makes void a line of its own", voidREX},
	{"objdump takes fwait for a prefix", fwaitAsPrefix},
	{"objdump accepts REX, 66, F2, F3 and lock before VEX, EVEX and XOP, which is #UD (SDM vol. 2A section 2.3.2)", prefixBeforeVEX},
}

func prefixBeforeVEX(_ objdumpLine, code []byte) bool {
	_, err := Decode(code)
	var e *DecodeError
	if !errors.As(err, &e) || e.Err != ErrInvalid || bytes.IndexByte([]byte{0xc4, 0xc5, 0x62, 0x8f}, code[e.Off]) < 0 {
		return false
	}
	for _, b := range code[:e.Off] {
		if isREX(b) || prefixBits[b]&(PrefixOpSize|PrefixRep|PrefixRepne|PrefixLock) != 0 {
			return true
		}
	}
	return false
}

func isREX(b byte) bool { return b&0xf0 == 0x40 }

func voidREX(l objdumpLine, code []byte) bool {
	for _, b := range code[:min(l.len+1, len(code))] {
		if prefixBits[b] == 0 && !isREX(b) {
			return false
		}
	}
	return isREX(code[l.len-1])
}

// fwaitAsPrefix finds lines that end before fwait, where objdump takes the prefixes
// of fwait for void, and lines that begin with it and hold several instructions.
func fwaitAsPrefix(l objdumpLine, code []byte) bool {
	const fwait = 0x9b
	in, err := Decode(code)
	if err != nil || in.Map != MapOne || in.Opcode != fwait {
		return false
	}
	if int(in.Len) > l.len { // prefixes alone
		return int(in.Len) == l.len+1
	}
	sum := 0
	for err == nil && sum < l.len {
		sum += int(in.Len)
		in, err = Decode(code[sum:])
	}
	return sum == l.len || code[l.len] == fwait
}

// differ compares a file and reports what has no reason.
func differ(t *testing.T, file string) {
	t.Helper()
	bad := 0
	reasons := map[string]int{}
	n := objdumpText(t, file, func(l objdumpLine, code []byte) {
		diff := compareLine(l, code)
		if diff == "" {
			return
		}
		for _, d := range differences {
			if d.is(l, code) {
				reasons[d.why]++
				return
			}
		}
		if bad++; bad <= 20 {
			t.Errorf("%x: %s: % x: objdump has %d bytes, %s", l.addr, diff, code[:min(len(code), MaxLen)], l.len, l.text)
		}
	})
	t.Logf("%d instructions, %d differ", n, bad)
	for why, n := range reasons {
		t.Logf("%d: %s", n, why)
	}
}

// debianLibrary finds a shared library by the name that its Debian package gives it.
func debianLibrary(t *testing.T, pattern, pkg string) string {
	t.Helper()
	files, err := filepath.Glob("/usr/lib/x86_64-linux-gnu/" + pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("%s not found: install %s", pattern, pkg)
	}
	return files[0]
}

func TestDecodeAgainstObjdump(t *testing.T) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{
		debianLibrary(t, "libc.so.6", "libc6"),
		debianTool(t, "gdb", "gdb"),
		filepath.Join(strings.TrimSpace(string(goroot)), "bin/go"),
		debianLibrary(t, "libcrypto.so.*", "libssl3"),   // has tables between its code
		debianLibrary(t, "libdav1d.so.*", "libdav1d6"),  // hand-written AVX2 and AVX-512
		debianLibrary(t, "libx265.so.*", "libx265-199"), // 700,000 instructions with zmm registers
	} {
		t.Run(filepath.Base(file), func(t *testing.T) { differ(t, file) })
	}
}

// TestDecodeRandomAgainstObjdump compares on bytes that no compiler wrote.
func TestDecodeRandomAgainstObjdump(t *testing.T) {
	const size = 1 << 20
	var src bytes.Buffer
	r := rand.New(rand.NewPCG(3, 4))
	src.WriteString("all:\n") // the symbol of all branch targets
	for range size / 16 {
		src.WriteString(".byte ")
		for i := range 16 {
			if i > 0 {
				src.WriteByte(',')
			}
			fmt.Fprintf(&src, "%d", r.Uint32()&0xff)
		}
		src.WriteByte('\n')
	}
	src.WriteString(".fill 16, 1, 0x90\n") // the last instruction is whole
	obj := filepath.Join(t.TempDir(), "random.o")
	as := exec.Command(debianTool(t, "as", "binutils"), "--64", "-o", obj, "-")
	as.Stdin = &src
	if out, err := as.CombinedOutput(); err != nil {
		t.Fatalf("as: %v: %s", err, out)
	}
	differ(t, obj)
}
