package kernel

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"kprobes.dev/kprobes/internal/interval"
)

// laterTypes are the structures of a kernel later than 6.4, as far as they are read: modules
// have their memory in several pieces, per-CPU variables are members of pcpu_hot.
func laterTypes(t *testing.T) []byte {
	t.Helper()
	long := &btf.Int{Name: "long unsigned int", Size: 8}
	word := &btf.Int{Name: "unsigned int", Size: 4}
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}
	array := func(of btf.Type, n uint32) btf.Type { return &btf.Array{Index: word, Type: of, Nelems: n} }
	st := func(name string, size uint32, ms ...btf.Member) *btf.Struct {
		return &btf.Struct{Name: name, Size: size, Members: ms}
	}
	at := func(name string, off uint32, typ btf.Type) btf.Member {
		return btf.Member{Name: name, Type: typ, Offset: btf.Bits(off * 8)}
	}
	list := st("list_head", 16, at("next", 0, long), at("prev", 8, long))
	mem := st("module_memory", 16, at("base", 0, long), at("size", 8, word))
	kinds := &btf.Enum{Name: "mod_mem_type", Size: 4}
	for i, n := range []string{"MOD_TEXT", "MOD_DATA", "MOD_RODATA", "MOD_RO_AFTER_INIT", "MOD_INIT_TEXT", "MOD_INIT_DATA", "MOD_INIT_RODATA"} {
		kinds.Values = append(kinds.Values, btf.EnumValue{Name: n, Value: uint64(i)})
	}
	types := []btf.Type{
		st("module", 256, at("state", 0, kinds), at("list", 8, list), at("name", 24, array(char, 56)), at("mem", 80, array(mem, 7)),
			at("kallsyms", 192, long), at("extable", 200, long), at("num_exentries", 208, word), at("bug_table", 216, long), at("num_bugs", 224, word)),
		st("mod_kallsyms", 32, at("symtab", 0, long), at("num_symtab", 8, word), at("strtab", 16, long), at("typetab", 24, long)),
		st("pcpu_hot", 64, at("", 0, st("", 64, at("current_task", 0, long), at("preempt_count", 8, word), at("cpu_number", 12, word)))),
	}
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, &btf.MarshalOptions{Order: binary.LittleEndian})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestLater reads modules and per-CPU offsets as later kernels have them.
func TestLater(t *testing.T) {
	const head, hot, types, mod, table = madeData + 0x100, madeData + 0x140, madeData + 0x1000, madeData + 0x8000, madeData + 0x9000
	raw := laterTypes(t)
	d := made{"6.4", 4, 0x1e00000, 0xffffffffa3600000, 3, 500, 3, []Symbol{
		{"modules", head, 'd'}, {"pcpu_hot", hot, 'D'}, {"__start_BTF", types, 'R'}, {"__stop_BTF", types + uint64(len(raw)), 'R'},
	}, 0, 0}
	ram := make(plainRAM, 48<<20)
	put := func(off uint64, words ...uint64) {
		for i, w := range words {
			binary.LittleEndian.PutUint64(ram[d.pa+off+uint64(8*i):], w)
		}
	}
	at := func(off uint64) uint64 { return d.va + off }
	put(head, at(mod+8), at(mod+8))
	put(mod+8, at(head), at(head))
	copy(ram[d.pa+mod+24:], "later")
	put(mod+80, at(0x1000), 0x2000, at(madeData), 0x1000, at(0x3000), 0, at(0x4000), 0x800, at(0x5000), 0x100)
	put(mod+192, at(table))
	put(table, at(table+0x100), 3, at(table+0x200), at(table+0x300))
	put(table+0x100+24, 0x0001_00_12_00000001, at(0x1100), 16, 0x0001_00_02_00000006, at(0x1080), 16) // Elf64_Sym
	copy(ram[d.pa+table+0x200:], "\x00late\x00sub\x00")
	copy(ram[d.pa+table+0x300:], "?tt")
	copy(ram[d.pa+types:], raw)
	d.write(ram)
	k, err := Find(ram)
	if err != nil {
		t.Fatal(err)
	}
	mods, err := k.Modules()
	if err != nil || len(mods) != 1 {
		t.Fatalf("%d modules, %v", len(mods), err)
	}
	m := mods[0]
	if m.Name != "later" || m.Text != (interval.Range{Start: at(0x1000), End: at(0x3000)}) || !slices.Equal(m.Data, []interval.Range{{Start: at(madeData), End: at(madeData + 0x1000)}, {Start: at(0x4000), End: at(0x4800)}}) {
		t.Errorf("%s: text %x, data %x", m.Name, m.Text, m.Data)
	}
	if want := []Symbol{{"sub", at(0x1080), 't'}, {"late", at(0x1100), 'T'}}; !slices.Equal(m.Symbols, want) {
		t.Errorf("symbols %+v", m.Symbols)
	}
	for name, off := range map[string]uint64{"current_task": 0, "preempt_count": 8, "cpu_number": 12} {
		got, err := k.perCPUOffset(name, name)
		if err != nil || got != int32(uint32(at(hot)+off)) {
			t.Errorf("%s: 0x%x, %v", name, got, err)
		}
	}
}
