package workload

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
)

// A large program: a static ELF file with many functions and their names, which waits for the
// end of its standard input. It is made here, for a machine need not have one, nor a compiler.

// LargeSymbol is the name of a function in the middle of the large program.
const LargeSymbol = "large_050000"

const (
	largeFunctions = 100_000
	largeBase      = 0x400000
	largeHeader    = 0x1000 // where the code begins in the file
	largeRecord    = 24     // bytes of a symbol (Elf64_Sym)
	largeSections  = 5      // the empty one, .text, .symtab, .strtab, .shstrtab
)

// Code of the program: its start reads a byte and ends, and has what every program has, a
// system call with a return behind it and the return from a signal; the beginning, the middle
// and the end of all functions.
var (
	largeStart  = []byte("\x31\xc0\x31\xff\x48\x89\xe6\xba\x01\x00\x00\x00\x0f\x05\x31\xff\xb8\xe7\x00\x00\x00\x0f\x05\x0f\x05\xc3\xb8\x0f\x00\x00\x00\x0f\x05\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc")
	largeHead   = []byte("\x55\x48\x89\xe5\x53\x48\x83\xec\x18\x85\xff\x74\x03")
	largeMiddle = []byte("\x8d\x04\x37\x48\x8b\x4d\xf0\x01\xc8\x48\x39\xd1\x72\x02\x31\xc9")
	largeTail   = []byte("\x48\x83\xc4\x18\x5b\x5d\xc3")
)

// WriteLarge makes a program of about so many bytes, at least 16 MB.
func WriteLarge(path string, size int) error {
	if size < 16<<20 || size > 1<<30 {
		return fmt.Errorf("workload: a program of %d bytes: not from %d to %d", size, 16<<20, 1<<30)
	}
	name := func(i int) string { return fmt.Sprintf("large_%06d", i) }
	each := (size - largeHeader - largeFunctions*(largeRecord+len(name(0))+1)) / largeFunctions &^ 15
	text := largeFunctions*each + len(largeStart)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("workload: %w", err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	w.Write(largeHeaders(text))
	w.Write(largeStart)
	body := largeBody(each)
	for range largeFunctions {
		w.Write(body)
	}
	w.Write(make([]byte, largeRecord))
	for i := range largeFunctions {
		w.Write(symbolRecord(1+i*(len(name(0))+1), largeBase+largeHeader+uint64(len(largeStart)+i*each), uint64(each)))
	}
	w.WriteByte(0)
	for i := range largeFunctions {
		w.WriteString(name(i) + "\x00")
	}
	w.WriteString("\x00.text\x00.symtab\x00.strtab\x00.shstrtab\x00")
	err = w.Flush() // tells of the writes before it too
	if err2 := f.Close(); err == nil {
		err = err2
	}
	return err
}

// largeBody is the code of a function.
func largeBody(size int) []byte {
	b := bytes.Clone(largeHead)
	for len(b)+len(largeMiddle)+len(largeTail) <= size {
		b = append(b, largeMiddle...)
	}
	b = append(b, largeTail...)
	return append(b, bytes.Repeat([]byte{0xcc}, size-len(b))...)
}

// symbolRecord is an Elf64_Sym of a global function in .text.
func symbolRecord(name int, addr, size uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(name))
	b = append(b, 1<<4|2, 0, 1, 0) // STB_GLOBAL, STT_FUNC; section 1
	b = binary.LittleEndian.AppendUint64(b, addr)
	return binary.LittleEndian.AppendUint64(b, size)
}

// largeHeaders are the file header, one program header and the section headers (System V ABI,
// AMD64 supplement; chapters 4 and 5 of the generic ABI), up to largeHeader.
func largeHeaders(text int) []byte {
	var b []byte
	put := func(vs ...any) {
		for _, v := range vs {
			b, _ = binary.Append(b, binary.LittleEndian, v) // fails for types without a size only
		}
	}
	put([]byte("\x7fELF\x02\x01\x01"), [9]byte{}, uint16(2), uint16(62), uint32(1), uint64(largeBase+largeHeader), uint64(64), uint64(120), uint32(0))
	put(uint16(64), uint16(56), uint16(1), uint16(64), uint16(largeSections), uint16(largeSections-1))
	end := uint64(largeHeader + text)
	put(uint32(1), uint32(5), uint64(0), uint64(largeBase), uint64(largeBase), end, end, uint64(0x1000)) // PT_LOAD, R+X
	section := func(name, typ uint32, flags, addr, off, size uint64, link, info uint32, align, entry uint64) {
		put(name, typ, flags, addr, off, size, link, info, align, entry)
	}
	symbols, names := uint64((largeFunctions+1)*largeRecord), uint64(1+largeFunctions*len(LargeSymbol)+largeFunctions)
	section(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	section(1, 1, 6, largeBase+largeHeader, largeHeader, uint64(text), 0, 0, 16, 0) // PROGBITS, ALLOC+EXECINSTR
	section(7, 2, 0, 0, end, symbols, 3, 1, 8, largeRecord)                         // SYMTAB
	section(15, 3, 0, 0, end+symbols, names, 0, 0, 1, 0)                            // STRTAB
	section(23, 3, 0, 0, end+symbols+names, 33, 0, 0, 1, 0)
	return append(b, make([]byte, largeHeader-len(b))...)
}

// StartLarge starts the large program. It ends when stop is called, or this process ends.
func StartLarge(path string) (pid int, stop func() error, err error) {
	cmd := exec.Command(path)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, fmt.Errorf("workload: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("workload: %w", err)
	}
	return cmd.Process.Pid, func() error {
		in.Close()
		return cmd.Wait()
	}, nil
}
