package soak

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/symbol"
)

// Object is a file of a stage: the program or a shared object.
type Object struct {
	Name  string // base name
	Path  string
	Main  bool
	Image *symbol.Image
	file  *os.File
	text  elf.ProgHeader
}

func openObject(path string, main bool) (*Object, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	o := &Object{Name: filepath.Base(path), Path: path, Main: main, file: f}
	if err := o.load(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

func (o *Object) load() error {
	st, err := o.file.Stat()
	if err != nil {
		return err
	}
	if o.Image, err = symbol.Open(o.file, st.Size(), o.Path, nil); err != nil {
		return err
	}
	e, err := elf.NewFile(o.file)
	if err != nil {
		return err
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			o.text = p.ProgHeader
			return nil
		}
	}
	return fmt.Errorf("no code")
}

// code reads up to n bytes of code at a link-time address.
func (o *Object) code(addr uint64, n int) ([]byte, error) {
	off := addr - o.text.Vaddr
	if off >= o.text.Filesz {
		return nil, fmt.Errorf("%s: 0x%x is no code", o.Name, addr)
	}
	b := make([]byte, min(uint64(n), o.text.Filesz-off))
	_, err := o.file.ReadAt(b, int64(o.text.Off+off))
	if err == io.EOF {
		err = nil
	}
	return b, err
}

// offset is an address's offset in the file.
func (o *Object) offset(addr uint64) uint64 { return addr - o.text.Vaddr + o.text.Off }

// instructions lists the instructions of a function as a linear walk finds them; what follows
// a byte that is no code is left out.
func (o *Object) instructions(fn *symbol.Func) []uint64 {
	b, err := o.code(fn.Addr, int(min(fn.Size, 1<<16)))
	if err != nil {
		return nil
	}
	var out []uint64
	for at := 0; at < len(b); {
		in, err := amd64.Decode(b[at:])
		if err != nil || at+int(in.Len) > len(b) {
			break
		}
		out = append(out, fn.Addr+uint64(at))
		at += int(in.Len)
	}
	return out
}

// comesBack says whether a function jumps to its own start, where it is entered once more: at the function's exits
// only the last of these calls is seen to return, and the others count as left; by trampoline those are missed for
// which there is no instance.
func (o *Object) comesBack(start uint64) bool {
	fn, _, ok := o.Image.At(start)
	if !ok {
		return false
	}
	return slices.ContainsFunc(o.instructions(fn), func(at uint64) bool {
		b, err := o.code(at, amd64.MaxLen)
		if err != nil {
			return false
		}
		in, err := amd64.Decode(b)
		to, jumps := in.Target(at)
		return err == nil && jumps && in.Kind != amd64.KindCall && to == start
	})
}

// iterates says whether an instruction is a string instruction with a repeat prefix.
func (o *Object) iterates(addr uint64) bool {
	b, err := o.code(addr, amd64.MaxLen)
	if err != nil {
		return false
	}
	in, err := amd64.Decode(b)
	if err != nil || in.Map != amd64.MapOne || in.Prefix&(amd64.PrefixRep|amd64.PrefixRepne) == 0 {
		return false
	}
	switch in.Opcode {
	case 0x6c, 0x6d, 0x6e, 0x6f, 0xa4, 0xa5, 0xa6, 0xa7, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf:
		return true
	}
	return false
}

// kernelRuns says whether the kernel runs an instruction under its uprobe: Linux 6.18 takes some
// vector instructions for branches, and the program goes wrong.
func (o *Object) kernelRuns(addr uint64) bool {
	b, err := o.code(addr, amd64.MaxLen)
	return err == nil && amd64.KernelRuns(b) == nil
}

// dispatches says whether an object chooses code by the CPU's features.
func (o *Object) dispatches() bool {
	for _, name := range []string{"libc.so", "libm.so", "libcrypto.so", "libssl.so", "libcrypt.so"} {
		if strings.HasPrefix(o.Name, name) {
			return true
		}
	}
	return false
}

func (o *Object) close() { _ = o.file.Close() }
