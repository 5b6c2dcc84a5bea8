package amd64

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// copied is one instruction of a copy, as a pair shows it.
type copied struct {
	AddrPair
	Inst
	code []byte
}

// decodeCopy decodes the instructions that the pairs name in the copy at to.
func decodeCopy(out []byte, to uint64, pairs []AddrPair) ([]copied, error) {
	var cs []copied
	end := to
	for _, p := range pairs {
		if p.Copy < end || p.CopyEnd <= p.Copy || p.CopyEnd > to+uint64(len(out)) {
			return nil, fmt.Errorf("pair %x is not in order or not in the copy", p)
		}
		code := out[p.Copy-to : p.CopyEnd-to]
		in, err := Decode(code)
		if err != nil || int(in.Len) != len(code) {
			return nil, fmt.Errorf("copied % x decodes to %d bytes: %w", code, in.Len, err)
		}
		cs = append(cs, copied{p, in, code})
		end = p.CopyEnd
	}
	return cs, nil
}

// checkCopy proves from its decoded instructions that a copy does what the original
// does: the same bytes, or a known replacement, and the same absolute addresses.
func checkCopy(in *Inst, code []byte, addr uint64, out []byte, to uint64, pairs []AddrPair) error {
	cs, err := decodeCopy(out, to, pairs)
	if err == nil && (len(cs) == 0 || cs[0].Orig != addr || cs[0].Copy != to || cs[0].SP != 0) {
		err = errors.New("no pair for the start")
	}
	if err == nil {
		err = checkKind(in, code, addr, out, to, cs)
	}
	if err != nil {
		return fmt.Errorf("% x at %#x -> % x at %#x: %w", code, addr, out, to, err)
	}
	return nil
}

func checkKind(in *Inst, code []byte, addr uint64, out []byte, to uint64, cs []copied) error {
	target, _ := in.Target(addr)
	next := addr + uint64(in.Len)
	switch in.Kind {
	case KindJmp:
		return goesTo(cs, out, to, target)
	case KindJcc:
		return checkJcc(in, cs, out, to, target)
	case KindLoop:
		return checkLoop(in, cs, out, to, next, target)
	case KindCall:
		if target == next {
			return checkPushPC(cs, out, to, next)
		}
		rest, err := pushes(cs, out, to, next)
		if err != nil {
			return err
		}
		return goesTo(rest, out, to, target)
	case KindCallInd:
		rest, err := pushes(cs, out, to, next)
		if err != nil {
			return err
		}
		return checkJumpForm(in, code, addr, rest)
	}
	if in.Map == MapOne && in.Opcode == 0x8d && cs[0].Opcode != 0x8d {
		return checkLeaConst(in, target, cs)
	}
	return checkSame(in, code, addr, cs)
}

// goesTo wants one jump to target.
func goesTo(cs []copied, out []byte, to, target uint64) error {
	if len(cs) != 1 || cs[0].SP != 0 {
		return fmt.Errorf("%d instructions, want a jump", len(cs))
	}
	got, ok := cs[0].Target(cs[0].Copy)
	if cs[0].Kind == KindJmpInd && cs[0].RIPMem && got >= to && got+8 <= to+uint64(len(out)) {
		got = binary.LittleEndian.Uint64(out[got-to:])
	} else if cs[0].Kind != KindJmp {
		return fmt.Errorf("% x is no jump", cs[0].code)
	}
	if !ok || got != target {
		return fmt.Errorf("jump to %#x, want %#x", got, target)
	}
	return nil
}

func checkJcc(in *Inst, cs []copied, out []byte, to, target uint64) error {
	first := &cs[0]
	got, _ := first.Target(first.Copy)
	switch {
	case first.Kind != KindJcc:
	case len(cs) == 1 && first.Opcode&0xf == in.Opcode&0xf && got == target:
		return nil
	case len(cs) == 2 && first.Opcode&0xf == in.Opcode&0xf^1 && got == to+uint64(len(out)) && cs[1].Orig == target:
		return goesTo(cs[1:], out, to, target)
	}
	return errors.New("branch is another")
}

func checkLoop(in *Inst, cs []copied, out []byte, to, next, target uint64) error {
	if len(cs) != 3 || cs[0].Opcode != in.Opcode || cs[0].Prefix&PrefixAddrSize != in.Prefix&PrefixAddrSize {
		return errors.New("loop is another")
	}
	if taken, _ := cs[0].Target(cs[0].Copy); taken != cs[2].Copy || cs[2].Orig != target || cs[1].Orig != next {
		return errors.New("loop does not go to its jump")
	}
	if err := goesTo(cs[1:2], out, to, to+uint64(len(out))); err != nil {
		return err
	}
	return goesTo(cs[2:], out, to, target)
}

// pushes wants a push of the return address, and gives what follows.
func pushes(cs []copied, out []byte, to, next uint64) ([]copied, error) {
	in := &cs[0]
	got := uint64(in.Imm)
	switch lit, ok := in.Target(in.Copy); {
	case in.Opcode == 0x68 || in.Opcode == 0x6a:
	case in.Opcode == 0xff && in.ModRM == 0x35 && ok && lit >= to && lit+8 <= to+uint64(len(out)) && lit%8 == 0:
		got = binary.LittleEndian.Uint64(out[lit-to:])
	default:
		return nil, fmt.Errorf("% x pushes nothing", in.code)
	}
	if got != next || len(cs) != 2 {
		return nil, fmt.Errorf("push of %#x, want %#x", got, next)
	}
	return cs[1:], nil
}

func checkPushPC(cs []copied, out []byte, to, next uint64) error {
	if len(cs) == 1 {
		_, err := pushes([]copied{cs[0], {}}, out, to, next)
		return err
	}
	want := []string{"c74424f8", "c74424fc", "488d6424f8"}
	var got uint64
	for i, c := range cs {
		if len(cs) != len(want) || !strings.HasPrefix(fmt.Sprintf("%x", c.code), want[i]) {
			return errors.New("the program counter is not pushed")
		}
		if i < 2 {
			got |= uint64(uint32(c.Imm)) << (32 * i)
		}
	}
	if got != next {
		return fmt.Errorf("push of %#x, want %#x", got, next)
	}
	return nil
}

// checkJumpForm wants the indirect jump that belongs to an indirect call.
func checkJumpForm(in *Inst, code []byte, addr uint64, cs []copied) error {
	c := &cs[0]
	if c.Kind != KindJmpInd || c.SP != 8 || c.Orig != addr || c.Mod() == 3 != (in.Mod() == 3) || c.Rex != in.Rex || c.Ext != in.Ext ||
		c.Prefix != in.Prefix || c.ModRM&7 != in.ModRM&7 || c.SIB != in.SIB || c.RIPMem != in.RIPMem {
		return errors.New("operand of the call is another")
	}
	if in.RIPMem {
		return sameTarget(in, addr, c)
	}
	grow := int64(0)
	if in.HasMem() && in.SIB&7 == 4 && in.HasSIB && in.Rex&1 == 0 && in.Ext&1 == 0 {
		grow = 8
	}
	if c.disp(c.code) != in.disp(code)+grow {
		return fmt.Errorf("displacement %d, want %d more than %d", c.disp(c.code), grow, in.disp(code))
	}
	return nil
}

func checkLeaConst(in *Inst, target uint64, cs []copied) error {
	c := &cs[0]
	reg := c.Opcode&7 | c.Rex&1<<3
	got := uint64(c.Imm)
	switch {
	case c.Opcode == 0xc7:
		reg = c.RM()
	case !c.W():
		got = uint64(uint32(c.Imm))
	}
	if len(cs) != 1 || c.Map != MapOne || reg != in.Reg() || got != target {
		return fmt.Errorf("register %d gets %#x, want %d and %#x", reg, got, in.Reg(), target)
	}
	return nil
}

func sameTarget(in *Inst, addr uint64, c *copied) error {
	want, _ := in.Target(addr)
	got, _ := c.Target(c.Copy)
	if in.RIPMem && in.Prefix&PrefixAddrSize != 0 {
		want, got = want&0xffffffff, got&0xffffffff
	}
	if got != want {
		return fmt.Errorf("target %#x, want %#x", got, want)
	}
	return nil
}

// checkSame wants the same bytes but for the PC-relative field.
func checkSame(in *Inst, code []byte, addr uint64, cs []copied) error {
	c := &cs[0]
	if len(cs) != 1 || len(c.code) != len(code) {
		return errors.New("length is another")
	}
	blank := func(b []byte) []byte {
		b = bytes.Clone(b)
		clear(b[in.RelOff : in.RelOff+in.RelLen])
		return b
	}
	if !bytes.Equal(blank(code), blank(c.code)) {
		return errors.New("bytes are others")
	}
	return sameTarget(in, addr, c)
}

// relocBinaries are real programs: C with AVX2 and AVX-512 string functions, C++, Go,
// and hand-written AVX-512.
func relocBinaries(t testing.TB) []string {
	t.Helper()
	return []string{
		relocLib(t, "libc.so.6"),
		relocTool(t, "gdb"),
		goCommand(t),
		relocLib(t, "libcrypto.so.3"),
	}
}

func relocTool(t testing.TB, name string) string {
	t.Helper()
	file, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("install %s: %v", name, err)
	}
	return file
}

func goCommand(t testing.TB) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("go env GOROOT: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(root)), "bin", "go")
}

// relocLib asks the compiler where a library is.
func relocLib(t testing.TB, name string) string {
	t.Helper()
	out, err := exec.Command("gcc", "-print-file-name="+name).Output()
	file := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(file) {
		t.Fatalf("gcc and %s are needed (packages gcc, libssl3): found %q, %v", name, file, err)
	}
	return file
}

// executable calls f for each section of code of an ELF file.
func executable(t testing.TB, file string, f func(addr uint64, code []byte)) {
	t.Helper()
	e, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, s := range e.Sections {
		if s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_EXECINSTR == 0 {
			continue
		}
		code, err := s.Data()
		if err != nil {
			t.Fatal(err)
		}
		f(s.Addr, code)
	}
}

// tally counts what became of the instructions of one file.
type tally struct {
	insts, data int
	refused     map[string]int
	wrong       []error
}

// move relocates every instruction of a section to delta bytes away, each by itself.
func (c *tally) move(addr uint64, code []byte, delta uint64) {
	for off := 0; off < len(code) && len(c.wrong) < 10; {
		in, err := Decode(code[off:])
		if err != nil {
			c.data++ // tables between functions
			off++
			continue
		}
		c.insts++
		at, b := addr+uint64(off), code[off:off+int(in.Len)]
		a := NewAsm(at + delta)
		pairs, err := Relocate(a, &in, b, at, nil)
		var re *RelocError
		switch {
		case errors.As(err, &re):
			c.refuse(re)
		case err == nil:
			err = checkCopy(&in, b, at, a.Bytes(), a.Base(), pairs)
			fallthrough
		default:
			if err != nil {
				c.wrong = append(c.wrong, err)
			}
		}
		off += len(b)
	}
}

// refuse counts a refusal by its reason; those for distance are one.
func (c *tally) refuse(re *RelocError) {
	if errors.Is(re, ErrReach) {
		c.refused[ErrReach.Error()]++
		return
	}
	c.refused[re.Reason]++
}

// TestRelocateBinaries moves every instruction of real programs 1 GB up and down and
// decodes the copies. What is refused is listed by reason.
func TestRelocateBinaries(t *testing.T) {
	for _, file := range relocBinaries(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			c := tally{refused: map[string]int{}}
			executable(t, file, func(addr uint64, code []byte) {
				c.move(addr, code, 1<<30)
				c.move(addr, code, -1<<30&(1<<64-1))
			})
			for _, err := range c.wrong {
				t.Error(err)
			}
			refused := 0
			for _, reason := range slices.Sorted(maps.Keys(c.refused)) {
				refused += c.refused[reason]
				t.Logf("%8d refused: %s", c.refused[reason], reason)
			}
			t.Logf("%8d moved of %d, %d bytes are no code", c.insts-refused, c.insts, c.data)
			padding := c.refused[kindReasons[KindInt3]]
			if c.insts < 100000 || refused-padding > c.insts/200 {
				t.Errorf("%d instructions, %d refused", c.insts, refused)
			}
		})
	}
}
