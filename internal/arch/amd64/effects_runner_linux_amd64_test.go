package amd64

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// effectForm is an instruction and its bytes.
type effectForm struct {
	text string
	code []byte
	in   Inst
}

// expandForm replaces [a|b] in s by each of its choices.
func expandForm(s string) []string {
	open := strings.IndexByte(s, '[')
	if open < 0 {
		return []string{s}
	}
	end := open + strings.IndexByte(s[open:], ']')
	var all []string
	for _, tail := range expandForm(s[end+1:]) {
		for choice := range strings.SplitSeq(s[open+1:end], "|") {
			all = append(all, s[:open]+choice+tail)
		}
	}
	return all
}

// readForms assembles the forms in a file.
func readForms(t *testing.T, file string) []effectForm {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var forms []effectForm
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		for _, s := range expandForm(line) {
			forms = append(forms, effectForm{text: s})
		}
	}
	assembleForms(t, forms)
	return forms
}

// assembleForms fills in code and in: labels i0, i1 ... stand before the instructions.
func assembleForms(t *testing.T, forms []effectForm) {
	t.Helper()
	var src bytes.Buffer
	for i, f := range forms {
		fmt.Fprintf(&src, "i%d: %s\n", i, f.text)
	}
	fmt.Fprintf(&src, "i%d: nop\n", len(forms))
	obj := filepath.Join(t.TempDir(), "forms.o")
	as := exec.Command(debianTool(t, "as", "binutils"), "--64", "-o", obj, "-")
	as.Stdin = &src
	if out, err := as.CombinedOutput(); err != nil {
		t.Fatalf("as: %v\n%s", err, out)
	}
	text, at := textAndLabels(t, obj)
	for i := range forms {
		f := &forms[i]
		f.code = text[at[fmt.Sprintf("i%d", i)]:at[fmt.Sprintf("i%d", i+1)]]
		var err error
		if f.in, err = Decode(f.code); err != nil || int(f.in.Len) != len(f.code) {
			t.Fatalf("%s: % x: length %d, %v", f.text, f.code, f.in.Len, err)
		}
	}
}

// textAndLabels gives the code of an object file and the offsets of its labels.
func textAndLabels(t *testing.T, obj string) ([]byte, map[string]uint64) {
	t.Helper()
	f, err := elf.Open(obj)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := f.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]uint64{}
	for _, s := range syms {
		at[s.Name] = s.Value
	}
	return text, at
}

// Addresses of testdata/effects/runner.c.
const (
	runnerData      = 0x10000000
	runnerDataSize  = 0x2000
	runnerCode      = 0x70000000
	runnerElsewhere = 0x60
)

// runIn and runOut are struct in and struct out of testdata/effects/runner.c.
type (
	runIn struct {
		Code  [16]byte
		Len   uint64
		Regs  [16]uint64
		Flags uint64
		Other uint64
	}
	runOut struct {
		Regs                                [16]uint64
		Flags                               uint64
		Memory, Wrote, Vector, Signal, Path uint64
	}
)

// aim makes the bytes that the runner executes: a branch goes to its second stub,
// a RIP-relative operand into its data.
func (f *effectForm) aim() (in runIn) {
	copy(in.Code[:], f.code)
	in.Len = uint64(len(f.code))
	rel := int64(runnerElsewhere) - int64(in.Len)
	if f.in.RIPMem {
		rel = runnerData + runnerDataSize/2 - runnerCode - int64(in.Len)
	}
	switch f.in.RelLen {
	case 1:
		in.Code[f.in.RelOff] = byte(rel)
	case 4:
		binary.LittleEndian.PutUint32(in.Code[f.in.RelOff:], uint32(rel))
	}
	return in
}

// effectRunner is the program of testdata/effects/runner.c.
type effectRunner string

func buildRunner(t *testing.T) effectRunner {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "runner")
	cc := exec.Command(debianTool(t, "gcc", "gcc"), "-O2", "-Wall", "-mno-red-zone", "-o", bin, "testdata/effects/runner.c")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return effectRunner(bin)
}

// run executes each of ins.
func (r effectRunner) run(t *testing.T, ins []runIn) []runOut {
	t.Helper()
	var in bytes.Buffer
	if err := binary.Write(&in, binary.LittleEndian, ins); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	cmd := exec.Command(string(r))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("runner: %v after %d of %d runs", err, stdout.Len()/binary.Size(runOut{}), len(ins))
	}
	outs := make([]runOut, len(ins))
	if err := binary.Read(&stdout, binary.LittleEndian, outs); err != nil {
		t.Fatal(err)
	}
	return outs
}
