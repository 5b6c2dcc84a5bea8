package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/interval"
)

// plainRAM is a machine with one range of memory.
type plainRAM []byte

func (r plainRAM) Ranges() []interval.Range { return []interval.Range{{Start: 0, End: uint64(len(r))}} }

func (r plainRAM) Bytes(pa uint64, n int) []byte {
	if n < 0 || pa > uint64(len(r)) || uint64(n) > uint64(len(r))-pa {
		return nil
	}
	return r[pa : pa+uint64(n) : pa+uint64(n)]
}

// made describes a kernel that is made up: only what Find looks at.
type made struct {
	layout string // of kallsyms, as Kernel.Layout names it
	levels int
	pa, va uint64   // of _text
	seqLen int      // bytes of an entry of seqs_of_names
	names  int      // functions beside those that are needed
	state  uint32   // system_state
	extra  []Symbol // more symbols behind the others of madeData, addresses relative to _text
	align  int      // where each table of kallsyms begins; 0 is 8
	off    int      // bytes that the tables lie behind their place in the image
}

// Offsets in the image of a made-up kernel.
const (
	madeBanner = 0x400000
	madeTables = 0x410000
	madeData   = 0x600000
	madePGD    = 0x700000
	madeSize   = 0x800000
)

const madeText = "Linux version 9.9.9-made (nobody@nowhere) #1 SMP\n"

func (d *made) symbols() []Symbol {
	at := func(off uint64) uint64 { return d.va + off }
	syms := []Symbol{{"_text", at(0), 'T'}, {"_stext", at(0), 'T'}}
	for i := range d.names {
		syms = append(syms, Symbol{fmt.Sprintf("func_%d_%s", i, strings.Repeat("long", i%40)), at(0x1000 + uint64(i)*16), "tT"[i%2]})
	}
	syms = append(syms,
		Symbol{"_etext", at(0x300000), 'T'},
		Symbol{"__start_rodata", at(madeBanner), 'R'}, Symbol{"linux_banner", at(madeBanner), 'R'},
		Symbol{"init_task", at(madeData), 'D'}, Symbol{"system_state", at(madeData + 64), 'D'},
	)
	for _, e := range d.extra {
		syms = append(syms, Symbol{e.Name, at(e.Addr), e.Type})
	}
	syms = append(syms,
		Symbol{"init_top_pgt", at(madePGD), 'D'}, Symbol{"level3_kernel_pgt", at(madePGD + 0x2000), 'D'},
		Symbol{"level2_kernel_pgt", at(madePGD + 0x3000), 'D'}, Symbol{"__bss_stop", at(madeSize), 'B'},
	)
	if d.layout == "6.1" || d.layout == "6.2" || d.layout == "6.4" { // per-CPU symbols are absolute
		syms = append([]Symbol{{"__per_cpu_start", 0, 'A'}, {"cpu_number", 0x40, 'A'}}, syms...)
	}
	return syms
}

// write puts the kernel into memory.
func (d *made) write(ram []byte) {
	le := binary.LittleEndian
	copy(ram[d.pa+madeBanner:], madeText)
	le.PutUint32(ram[d.pa+madeData+64:], d.state)
	pgd := d.pa + madePGD
	entry := func(table uint64, i int, to, flags uint64) { le.PutUint64(ram[table+uint64(8*i):], to|flags) }
	const tab, large = 0x63, 0x1e3
	if d.levels == 5 {
		entry(pgd, 511, pgd+0x1000, tab)
		entry(pgd+0x1000, 511, pgd+0x2000, tab)
	} else {
		entry(pgd, 511, pgd+0x2000, tab)
	}
	entry(pgd+0x2000, 510, pgd+0x3000, tab)
	for off := uint64(0); off < madeSize; off += largePage {
		entry(pgd+0x3000, int((d.va+off)>>21&511), d.pa+off, large)
	}
	copy(ram[d.pa+madeTables+uint64(d.off):], d.kallsyms())
}

// kallsyms makes the tables in the layout asked for.
func (d *made) kallsyms() []byte {
	syms := d.symbols()
	le := binary.LittleEndian
	var names, table, index, markers, seqs, offsets []byte
	for i := range 256 { // token i is the character i, or "long" for one that no name has
		index = le.AppendUint16(index, uint16(len(table)))
		if tok := byte(i); i == 0x80 {
			table = append(table, "long\x00"...)
		} else if tok == 0 {
			table = append(table, 'z', 0)
		} else {
			table = append(table, tok, 0)
		}
	}
	for i, s := range syms {
		if i%256 == 0 {
			markers = le.AppendUint32(markers, uint32(len(names)))
		}
		packed := string(s.Type) + strings.ReplaceAll(s.Name, "long", "\x80")
		if n := len(packed); n < 128 {
			names = append(names, byte(n))
		} else {
			names = append(names, byte(n)|0x80, byte(n>>7))
		}
		names = append(names, packed...)
		seqs = append(seqs, bytes.Repeat([]byte{byte(i * 7)}, d.seqLen)...)
	}
	multiple := 8
	if d.align != 0 {
		multiple = d.align
	}
	align := func(b []byte) []byte { return append(b, make([]byte, -len(b)&(multiple-1))...) }
	num := align(le.AppendUint32(nil, uint32(len(syms))))
	names, markers, seqs, table = align(names), align(markers), align(seqs), align(table)
	put := func(base func(i int, s Symbol) uint32) []byte {
		offsets = nil
		for i, s := range syms {
			offsets = le.AppendUint32(offsets, base(i, s))
		}
		return align(offsets)
	}
	base := le.AppendUint64(nil, d.va)
	percpu := func(_ int, s Symbol) uint32 {
		if s.Type == 'A' {
			return uint32(s.Addr)
		}
		return uint32(d.va - 1 - s.Addr)
	}
	switch d.layout {
	case "6.1":
		return slices.Concat(put(percpu), base, num, names, markers, table, index)
	case "6.2":
		return slices.Concat(put(percpu), base, num, names, markers, seqs, table, index)
	case "6.4":
		return slices.Concat(num, names, markers, table, index, put(percpu), base, seqs)
	case "6.15":
		return slices.Concat(num, names, markers, table, index, put(func(_ int, s Symbol) uint32 { return uint32(s.Addr - d.va) }), base, seqs)
	}
	head := slices.Concat(num, names, markers, table, index)
	here := d.va + madeTables + uint64(d.off+len(head))
	return slices.Concat(head, put(func(i int, s Symbol) uint32 { return uint32(s.Addr - here - uint64(4*i)) }), seqs)
}

func TestLayouts(t *testing.T) {
	for _, layout := range []string{"6.1", "6.2", "6.4", "6.15", "relative to the place"} {
		for _, levels := range []int{4, 5} {
			for _, n := range []int{20, 232, 244, 5000} {
				for _, seqLen := range []int{3, 4} {
					checkLayout(t, &made{layout, levels, 0x1e00000, 0xffffffffa3600000, seqLen, n, 3, nil, 8, 0})
				}
			}
		}
	}
}

// TestAligned has tables that begin at multiples of 4, be these of 8 or not.
func TestAligned(t *testing.T) {
	for _, layout := range []string{"6.4", "6.15", "relative to the place"} {
		for _, n := range []int{20, 231, 232, 233, 234, 5000} {
			for _, off := range []int{0, 4} {
				checkLayout(t, &made{layout, 4, 0x1e00000, 0xffffffffa3600000, 3, n, 3, nil, 4, off})
			}
		}
	}
}

func checkLayout(t *testing.T, d *made) {
	t.Helper()
	ram := make(plainRAM, 48<<20)
	d.write(ram)
	k, err := Find(ram)
	if err != nil {
		t.Errorf("%+v: %v", d, err)
		return
	}
	va, pa := k.Base()
	_, l := k.Root()
	if k.Layout() != d.layout || va != d.va || pa != d.pa || l != d.levels || k.Release() != "9.9.9-made" {
		t.Errorf("%+v: found as %s at 0x%x, 0x%x, %d levels, release %s", d, k.Layout(), va, pa, l, k.Release())
	}
	if !slices.Equal(k.Symbols(), d.symbols()) {
		t.Errorf("%+v: other symbols", d)
	}
	if r := k.Text(); len(r) != 1 || r[0] != (interval.Range{Start: d.va, End: d.va + 0x300000}) {
		t.Errorf("text %x", r)
	}
	if err := k.Check(); err != nil {
		t.Error(err)
	}
}

func TestFindErrors(t *testing.T) {
	first := made{"6.2", 4, 0x1e00000, 0xffffffffa3600000, 3, 500, 3, nil, 0, 0}
	second := made{"6.2", 4, 0x800000, 0xffffffff81000000, 3, 500, 3, nil, 0, 0}
	for _, c := range []struct {
		name string
		want error
		prep func(ram plainRAM)
	}{
		{"nothing", syscall.EAGAIN, func(plainRAM) {}},
		{"starting", syscall.EAGAIN, func(ram plainRAM) { d := first; d.state = 1; d.write(ram) }},
		{"no page tables", syscall.EAGAIN, func(ram plainRAM) {
			first.write(ram)
			clear(ram[first.pa+madePGD : first.pa+madeSize])
		}},
		{"torn tables", syscall.EINVAL, func(ram plainRAM) {
			first.write(ram)
			clear(ram[first.pa+madeTables+2400 : first.pa+madeTables+2900]) // names
		}},
		{"overwritten", syscall.EAGAIN, func(ram plainRAM) { first.write(ram); clear(ram[first.pa+madeBanner : first.pa+madeBanner+64]) }},
		{"two", syscall.EEXIST, func(ram plainRAM) { first.write(ram); second.write(ram) }},
	} {
		ram := make(plainRAM, 48<<20)
		c.prep(ram)
		k, err := Find(ram)
		if k != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		var two *AmbiguousError
		if c.want == error(syscall.EEXIST) && (!errors.As(err, &two) || len(two.Kernels) != 2) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestFindNeighbours finds two kernels that are alike, at one virtual address, closer to each other than an
// image may be large: each by its own tables.
func TestFindNeighbours(t *testing.T) {
	ram := make(plainRAM, 48<<20)
	want := []uint64{0x800000, 0x1000000, 0x1e00000}
	for _, pa := range want {
		d := made{"6.2", 4, pa, 0xffffffffa3600000, 3, 500, 3, nil, 0, 0}
		d.write(ram)
	}
	all, err := FindAll(ram)
	var got []uint64
	for _, k := range all {
		_, pa := k.Base()
		got = append(got, pa)
	}
	if !slices.Equal(got, want) {
		t.Errorf("kernels at 0x%x, want 0x%x: %v", got, want, err)
	}
}

// TestCheck sees a kernel that was replaced, and a table that was.
func TestCheck(t *testing.T) {
	d := made{"6.2", 4, 0x1e00000, 0xffffffffa3600000, 3, 500, 3, nil, 0, 0}
	ram := make(plainRAM, 48<<20)
	d.write(ram)
	k, err := Find(ram)
	if err != nil {
		t.Fatal(err)
	}
	clear(ram[d.pa+madeBanner : d.pa+madeBanner+16])
	if err := k.Check(); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("%v", err)
	}
}

// TestTranslate checks bounds: addresses that are not canonical, tables outside RAM, pages
// that do not exist.
func TestTranslate(t *testing.T) {
	d := made{"6.2", 4, 0x1e00000, 0xffffffffa3600000, 3, 500, 3, nil, 0, 0}
	ram := make(plainRAM, 48<<20)
	d.write(ram)
	k, err := Find(ram)
	if err != nil {
		t.Fatal(err)
	}
	pa, left, acc, ok := k.Translate(d.va + 0x1fffff)
	if !ok || pa != d.pa+0x1fffff || left != 1 || !acc.Write || !acc.Exec {
		t.Errorf("0x%x %d %+v %t", pa, left, acc, ok)
	}
	for _, va := range []uint64{0, 0x123, 0x8000_0000_0000_0000, 0xffff_0000_0000_0000 - 1, d.va - 1, d.va + madeSize} {
		if _, _, _, ok := k.Translate(va); ok {
			t.Errorf("0x%x is mapped", va)
		}
	}
	buf := make([]byte, 32)
	if err := k.Read(d.va+madeSize-16, buf); !errors.Is(err, syscall.EFAULT) || !strings.Contains(err.Error(), fmt.Sprintf("0x%x", d.va+madeSize)) {
		t.Errorf("%v", err)
	}
	binary.LittleEndian.PutUint64(ram[k.root+511*8:], 1<<40|1)
	if _, _, _, ok := k.Translate(d.va); ok {
		t.Error("a table outside RAM was read")
	}
	if _, err := k.Types(); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "CONFIG_DEBUG_INFO_BTF") {
		t.Errorf("types: %v", err)
	}
}
