package amd64

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// objdumpLine is an instruction as objdump prints it.
type objdumpLine struct {
	addr uint64
	len  int
	text []byte // mnemonic and operands, valid until the next line
}

// objdumpText disassembles the executable sections of an ELF file, calls f for
// each line with the bytes from its address to the end of the section, and gives
// the number of lines.
func objdumpText(t *testing.T, file string, f func(l objdumpLine, code []byte)) int {
	t.Helper()
	e, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	// intel64: the prefix 66 does not cut branch displacements to 16 bits
	cmd := exec.Command(debianTool(t, "objdump", "binutils"), "-d", "-z", "-w", "-M", "intel64", "--no-show-raw-insn", file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := objdumpParser{file: e, emit: f}
	if err := p.run(out); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return p.n
}

// debianTool finds a program that the tests need.
func debianTool(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install %s", err, pkg)
	}
	return path
}

// objdumpParser turns output into lines. An instruction ends where the next one
// starts, or at the end of its section.
type objdumpParser struct {
	file *elf.File
	emit func(objdumpLine, []byte)
	n    int

	section *elf.Section
	data    []byte
	last    objdumpLine
	pending bool
}

func (p *objdumpParser) run(r io.Reader) error {
	br := bufio.NewReaderSize(r, 1<<20)
	for {
		s, err := br.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := p.line(bytes.TrimRight(s, "\n")); err != nil {
			return fmt.Errorf("line %q: %w", s, err)
		}
	}
	p.endSection()
	if p.n == 0 {
		return errors.New("no instruction in the output")
	}
	return nil
}

func (p *objdumpParser) line(s []byte) error {
	if name, ok := bytes.CutPrefix(s, []byte("Disassembly of section ")); ok {
		return p.startSection(strings.TrimSuffix(string(name), ":"))
	}
	addr, text, ok := bytes.Cut(s, []byte(":\t"))
	if !ok || len(s) == 0 || s[0] != ' ' {
		return nil // header, symbol or empty line
	}
	a, err := strconv.ParseUint(string(bytes.TrimLeft(addr, " ")), 16, 64)
	if err != nil {
		return err
	}
	p.flush(a)
	p.last = objdumpLine{addr: a, text: append(p.last.text[:0], text...)}
	p.pending = true
	return nil
}

func (p *objdumpParser) startSection(name string) (err error) {
	p.endSection()
	if p.section = p.file.Section(name); p.section == nil {
		return errors.New("section not in the file")
	}
	p.data, err = p.section.Data()
	return err
}

func (p *objdumpParser) endSection() {
	if p.section != nil {
		p.flush(p.section.Addr + uint64(len(p.data)))
	}
}

func (p *objdumpParser) flush(end uint64) {
	if !p.pending {
		return
	}
	p.pending = false
	p.last.len = int(end - p.last.addr)
	p.n++
	p.emit(p.last, p.data[p.last.addr-p.section.Addr:])
}
