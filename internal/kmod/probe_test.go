package kmod

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
)

// The compilers lay the structs of linux/kprobes.h out as this package reads them.
func TestProbeLayout(t *testing.T) {
	text := "#include <linux/module.h>\n#include <linux/kprobes.h>\nMODULE_LICENSE(\"GPL\");\n"
	for member, off := range map[string]int{
		"kprobe, nmissed": kprobeMissed, "kprobe, addr": kprobeAddr, "kprobe, symbol_name": kprobeSymbol, "kprobe, offset": kprobeOffset,
		"kprobe, flags": kprobeFlags, "kprobe, pre_handler": kprobePre, "kprobe, post_handler": kprobePost, "kprobe, fault_handler": kprobeFault,
		"kprobe, opcode": kprobeOpcode, "kprobe, __own": kprobeOwn, "kretprobe, kp": 0, "kretprobe, handler": retHandler, "kretprobe, entry_handler": retEntry,
		"kretprobe, maxactive": retMaxActive, "kretprobe, nmissed": retMissed, "kretprobe, data_size": retDataSize, "jprobe, kp": 0, "jprobe, entry": jprobeEntry,
	} {
		text += fmt.Sprintf("_Static_assert(__builtin_offsetof(struct %s) == %d, \"%s\");\n", member, off, member)
	}
	for name, size := range map[string]int{"kprobe": kprobeSize, "kretprobe": kretprobeSize, "jprobe": jprobeSize} {
		text += fmt.Sprintf("_Static_assert(sizeof(struct %s) == %d, \"%s\");\n", name, size, name)
	}
	for name, v := range map[string]int{"KPROBE_FLAG_GONE": flagGone, "KPROBE_FLAG_DISABLED": flagDisabled, "KPROBE_FLAG_OPTIMIZED": flagOptimized, "KRETPROBE_MAX_DATA_SIZE": maxDataSize} {
		text += fmt.Sprintf("_Static_assert(%s == %d, \"%s\");\n", name, v, name)
	}
	for _, cc := range compilers {
		compile(t, cc, "layout", text)
	}
}

// memory is a target's memory from an address on.
type memory struct {
	at uint64
	b  []byte
}

var errNoMemory = errors.New("no memory")

func (m *memory) part(addr uint64, n int) []byte {
	if addr < m.at || addr-m.at+uint64(n) > uint64(len(m.b)) {
		return nil
	}
	return m.b[addr-m.at:][:n]
}

func (m *memory) read(addr uint64, b []byte) error {
	p := m.part(addr, len(b))
	if p == nil {
		return errNoMemory
	}
	copy(b, p)
	return nil
}

func (m *memory) write(addr uint64, b []byte) error {
	p := m.part(addr, len(b))
	if p == nil {
		return errNoMemory
	}
	copy(p, b)
	return nil
}

// The structs that compilers make of initialised variables are read as they were written.
func TestReadProbe(t *testing.T) {
	const source = `
#include <linux/module.h>
#include <linux/kprobes.h>
MODULE_LICENSE("GPL");
int pre(struct kprobe *p, struct pt_regs *r) { return 0; }
void post(struct kprobe *p, struct pt_regs *r, unsigned long f) {}
int fault(struct kprobe *p, struct pt_regs *r, int t) { return 0; }
int in(struct kretprobe_instance *i, struct pt_regs *r) { return 0; }
int out(struct kretprobe_instance *i, struct pt_regs *r) { return 0; }
void called(long a) { jprobe_return(); }
struct kprobe one = { .symbol_name = "some_function", .offset = 0x12345678, .pre_handler = pre, .post_handler = post, .fault_handler = fault, .flags = KPROBE_FLAG_DISABLED };
struct kretprobe two = { .kp.addr = (kprobe_opcode_t *)0x123456789abc, .kp.fault_handler = fault, .handler = out, .entry_handler = in, .maxactive = -3, .data_size = 4096 };
struct jprobe three = { .kp.symbol_name = "another", .kp.fault_handler = fault, .entry = called };
`
	for _, cc := range compilers {
		o := parsed(t, compile(t, cc, "probes", source))
		l := o.Layout(nil)
		im, err := l.Link(places, outside(o, 0x40500000))
		if err != nil {
			t.Fatal(err)
		}
		read := func(addr uint64, b []byte) error {
			p := im.mem(addr, uint64(len(b)))
			if p == nil {
				for part := range im.Bytes {
					m := memory{im.At[part], im.Bytes[part]}
					if m.read(addr, b) == nil {
						return nil
					}
				}
				return errNoMemory
			}
			copy(b, p)
			return nil
		}
		symbol := func(name string) uint64 {
			at, ok := im.Symbol(name)
			if !ok {
				t.Fatalf("%s: no %s", cc, name)
			}
			return at
		}
		text := interval.Range{Start: im.At[Text], End: im.At[Text] + uint64(len(im.Bytes[Text]))}
		for _, want := range []*Probe{
			{Kind: Kprobe, At: symbol("one"), Symbol: "some_function", Offset: 0x12345678, Disabled: true, Pre: symbol("pre"), Post: symbol("post"), Fault: symbol("fault")},
			{Kind: Kretprobe, At: symbol("two"), Addr: 0x123456789abc, Entry: symbol("in"), Return: symbol("out"), Fault: symbol("fault"), MaxActive: -3, DataSize: 4096},
			{Kind: Jprobe, At: symbol("three"), Symbol: "another", Entry: symbol("called"), Fault: symbol("fault")},
		} {
			if got, err := ReadProbe(read, want.Kind, want.At, text); err != nil || *got != *want {
				t.Errorf("%s: %+v, %v, not %+v", cc, got, err, want)
			}
		}
	}
}

// What a hostile module asks for is refused as the kernel refuses it.
func TestReadProbeRefused(t *testing.T) {
	text := interval.Range{Start: 0x1000, End: 0x2000}
	const at, name = 0x10000, 0x10100
	for _, c := range []struct {
		what string
		kind Kind
		at   uint64
		set  map[int]uint64
		text string // at name
		want error
		says string
	}{
		{"nothing is there", Kprobe, 0x5000, nil, "", unix.EFAULT, "struct at 0x5000"},
		{"it ends too soon", Kretprobe, at + 0x1000 - 100, nil, "", unix.EFAULT, "struct"},
		{"no place", Kprobe, at, nil, "", unix.EINVAL, "neither"},
		{"two places", Kprobe, at, map[int]uint64{kprobeAddr: 1, kprobeSymbol: name}, "f", unix.EINVAL, "set one of them"},
		{"a handler elsewhere", Kprobe, at, map[int]uint64{kprobeAddr: 1, kprobePost: 0x2000}, "", unix.EINVAL, "post_handler"},
		{"a return handler elsewhere", Kretprobe, at, map[int]uint64{kprobeAddr: 1, retHandler: 0xfff}, "", unix.EINVAL, "handler of"},
		{"too much data", Kretprobe, at, map[int]uint64{kprobeAddr: 1, retDataSize: 4097}, "", unix.E2BIG, "up to 4096"},
		{"a jprobe without a function", Jprobe, at, map[int]uint64{kprobeAddr: 1}, "", unix.EINVAL, "no entry"},
		{"a name that is not there", Kprobe, at, map[int]uint64{kprobeSymbol: 8}, "", unix.EFAULT, "name at 0x8"},
		{"a name without an end", Kprobe, at, map[int]uint64{kprobeSymbol: name}, strings.Repeat("x", 512), unix.EINVAL, "longer than 511"},
		{"a name that memory ends in", Kprobe, at, map[int]uint64{kprobeSymbol: at + 0x1000 - 3}, "", unix.EFAULT, "name"},
		{"the longest name", Kprobe, at, map[int]uint64{kprobeSymbol: name, kprobePre: 0x1fff}, strings.Repeat("x", 511), nil, ""},
	} {
		m := &memory{at, bytes.Repeat([]byte{0}, 0x1000)}
		for off, v := range c.set {
			binary.LittleEndian.PutUint64(m.b[off:], v)
		}
		copy(m.b[name-at:], c.text)
		copy(m.b[0xffd:], "end")
		p, err := ReadProbe(m.read, c.kind, c.at, text)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && p.Symbol != c.text {
			t.Errorf("%s: %+v, %v", c.what, p, err)
		}
	}
}

// A module reads in its structs what it was told.
func TestTell(t *testing.T) {
	const at = 0x10000
	for _, kind := range []Kind{Kprobe, Kretprobe} {
		m := &memory{at, bytes.Repeat([]byte{0xee}, kretprobeSize)}
		p := &Probe{Kind: kind, At: at}
		if err := p.Tell(m.write, &State{Addr: 0x1234, Opcode: 0x55, Missed: 1 << 40, Uncalled: 1 << 41, Optimized: true, Gone: true}); err != nil {
			t.Fatal(err)
		}
		le := binary.LittleEndian
		want := bytes.Repeat([]byte{0xee}, kretprobeSize)
		le.PutUint64(want[kprobeAddr:], 0x1234)
		le.PutUint32(want[kprobeFlags:], flagGone|flagOptimized)
		want[kprobeOpcode] = 0x55
		le.PutUint64(want[kprobeMissed:], 1<<40)
		if kind == Kretprobe {
			le.PutUint32(want[retMissed:], 1<<31-1)
		}
		if !bytes.Equal(m.b, want) {
			t.Errorf("kind %d: % x\nnot % x", kind, m.b, want)
		}
		if err := (&Probe{Kind: kind, At: 8}).Tell(m.write, &State{}); !errors.Is(err, errNoMemory) {
			t.Errorf("memory that is not there: %v", err)
		}
	}
}
