package ptrace

import (
	"math/rand/v2"
	"testing"
)

const (
	retKill  = 0x80000000
	retTrap  = 0x00030000
	retErrno = 0x00050000
)

func TestFilterRuns(t *testing.T) {
	d := CallData{nr: 9, arch: x86, ip: 0x1122334455667788, args: [6]uint64{0xaabbccdd00000001, 2, 3, 4, 5, 0x66}}
	ret := bpfInsn{Code: 0x16} // ret a
	for _, c := range []struct {
		name string
		prog filter
		want uint32
	}{
		{"ret k", filter{{0x06, 0, 0, retTrap}}, retTrap},
		{"ld nr", filter{{0x20, 0, 0, 0}, ret}, 9},
		{"ld arch", filter{{0x20, 0, 0, 4}, ret}, x86},
		{"ld ip high", filter{{0x20, 0, 0, 12}, ret}, 0x11223344},
		{"ld arg0 low", filter{{0x20, 0, 0, 16}, ret}, 1},
		{"ld arg0 high", filter{{0x20, 0, 0, 20}, ret}, 0xaabbccdd},
		{"ld arg5", filter{{0x20, 0, 0, 56}, ret}, 0x66},
		{"ld len", filter{{0x80, 0, 0, 0}, ret}, 64},
		{"ldx imm, txa", filter{{0x01, 0, 0, 5}, {0x87, 0, 0, 0}, ret}, 5},
		{"st, ldx mem, tax", filter{{0x00, 0, 0, 7}, {0x02, 0, 0, 15}, {0x00, 0, 0, 0}, {0x61, 0, 0, 15}, {0x87, 0, 0, 0}, ret}, 7},
		{"stx", filter{{0x01, 0, 0, 8}, {0x03, 0, 0, 3}, {0x60, 0, 0, 3}, ret}, 8},
		{"alu", filter{{0x00, 0, 0, 10}, {0x04, 0, 0, 5}, {0x14, 0, 0, 3}, {0x24, 0, 0, 4}, {0x34, 0, 0, 6}, {0x44, 0, 0, 0x80}, {0x64, 0, 0, 4}, {0x74, 0, 0, 1}, {0xa4, 0, 0, 1}, ret}, 0x441},
		{"neg, and", filter{{0x00, 0, 0, 1}, {0x84, 0, 0, 0}, {0x54, 0, 0, 0xff00}, ret}, 0xff00},
		{"alu x", filter{{0x01, 0, 0, 3}, {0x00, 0, 0, 10}, {0x1c, 0, 0, 0}, ret}, 7},
		{"ja", filter{{0x05, 0, 0, 1}, {0x06, 0, 0, 1}, {0x06, 0, 0, 2}}, 2},
		{"jeq taken", filter{{0x20, 0, 0, 0}, {0x15, 1, 0, 9}, {0x06, 0, 0, 1}, {0x06, 0, 0, 2}}, 2},
		{"jgt not taken", filter{{0x20, 0, 0, 0}, {0x25, 1, 0, 9}, {0x06, 0, 0, 1}, {0x06, 0, 0, 2}}, 1},
		{"jge taken", filter{{0x20, 0, 0, 0}, {0x35, 1, 0, 9}, {0x06, 0, 0, 1}, {0x06, 0, 0, 2}}, 2},
		{"jset else", filter{{0x20, 0, 0, 0}, {0x45, 0, 1, 6}, {0x06, 0, 0, 1}, {0x06, 0, 0, 2}}, 2},
		{"jeq x", filter{{0x01, 0, 0, 9}, {0x20, 0, 0, 0}, {0x1d, 1, 0, 0}, {0x06, 0, 0, 1}, {0x06, 0, 0, 2}}, 2},
	} {
		words := d.words()
		if got, err := c.prog.run(&words); err != nil || got != c.want {
			t.Errorf("%s: %#x, %v, want %#x", c.name, got, err, c.want)
		}
	}
}

func TestFiltersAllowTogether(t *testing.T) {
	d := CallData{nr: 9, arch: x86}
	ret := func(k uint32) filter { return filter{{0x06, 0, 0, k}} }
	for _, c := range []struct {
		list filterList
		ok   bool
	}{
		{nil, true},
		{filterList{ret(seccompAllow)}, true},
		{filterList{ret(seccompLog | 5), ret(seccompAllow)}, true},
		{filterList{ret(seccompAllow), ret(retErrno | 1)}, false},
		{filterList{ret(retKill), ret(seccompAllow)}, false},
		{filterList{ret(0)}, false},
		{filterList{ret(0x7ff00000)}, false}, // trace
		{filterList{ret(0x7fc00000)}, false}, // notify: it could wait for ever
	} {
		if ok, err := c.list.allows(&d); err != nil || ok != c.ok {
			t.Errorf("%v: %v, %v, want %v", c.list, ok, err, c.ok)
		}
	}
}

// A filter that decides by what is not known is not relied on; one that looks only at what
// is, or only for other calls, is.
func TestFilterLooksAtTheUnknown(t *testing.T) {
	look := func(word uint32) filter { // at a word, for call 14 alone
		return filter{
			{0x20, 0, 0, 0},
			{0x15, 0, 3, 14},
			{0x20, 0, 0, 4 * word},
			{0x15, 1, 0, 0xbad},
			{0x06, 0, 0, seccompAllow},
			{0x06, 0, 0, seccompAllow},
			{0x06, 0, 0, seccompAllow},
		}
	}
	for _, c := range []struct {
		nr   uint32
		open uint16
		word uint32
		ok   bool
	}{
		{14, openIP, 2, false},
		{14, openIP, 3, false},
		{14, openIP, 4, true},
		{14, openArg(1), 6, false},
		{14, openArg(1), 7, false},
		{14, openArg(2), 7, true},
		{14, openArg(2), 8, false},
		{14, openArg(5), 15, false},
		{14, 0, 2, true},
		{15, openIP, 2, true},
	} {
		d := CallData{nr: c.nr, arch: x86, open: c.open}
		if ok, err := (filterList{look(c.word)}).allows(&d); err != nil || ok != c.ok {
			t.Errorf("%+v: %v, %v", c, ok, err)
		}
	}
}

// A filter that the kernel would not have taken is an error and never runs on.
func TestFilterRefuses(t *testing.T) {
	var words callWords
	for name, f := range map[string]filter{
		"empty":          {},
		"runs off":       {{0x00, 0, 0, 1}},
		"jumps off":      {{0x05, 0, 0, 0xffffffff}, {0x06, 0, 0, seccompAllow}},
		"odd load":       {{0x20, 0, 0, 2}, {0x06, 0, 0, seccompAllow}},
		"load beyond":    {{0x20, 0, 0, 64}, {0x06, 0, 0, seccompAllow}},
		"memory beyond":  {{0x02, 0, 0, 16}, {0x06, 0, 0, seccompAllow}},
		"division by 0":  {{0x34, 0, 0, 0}, {0x06, 0, 0, seccompAllow}},
		"load of x byte": {{0x40, 0, 0, 0}, {0x06, 0, 0, seccompAllow}},
		"unknown alu":    {{0xf4, 0, 0, 0}, {0x06, 0, 0, seccompAllow}},
		"unknown jump":   {{0x55, 0, 0, 0}, {0x06, 0, 0, seccompAllow}},
	} {
		if got, err := f.run(&words); err == nil {
			t.Errorf("%s: %#x", name, got)
		}
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		f := make(filter, 1+rnd.IntN(12))
		for i := range f {
			f[i] = bpfInsn{uint16(rnd.IntN(256)), uint8(rnd.IntN(8)), uint8(rnd.IntN(8)), uint32(rnd.IntN(80))}
		}
		_, _ = f.run(&words) // it ends, and does not panic
	}
}

const x86 = 0xc000003e // AUDIT_ARCH_X86_64
