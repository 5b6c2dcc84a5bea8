package engine

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// unwound is a target that has unwind tables.
type unwound struct {
	mem   []byte
	word  uint64
	stops int // tables that were mapped
	fail  error
}

func (u *unwound) take(n int) uint64 {
	at := len(u.mem)
	u.mem = append(u.mem, make([]byte, (n+63)&^63)...)
	return uint64(at)
}

func (u *unwound) MapTable(b []byte) (uint64, error) {
	if u.fail != nil {
		return 0, u.fail
	}
	u.stops++
	at := u.take(len(b))
	copy(u.mem[at:], b)
	return at, nil
}

func (u *unwound) NewTable(n int) (uint64, error) { return u.take(n), nil }

func (u *unwound) WriteTable(at uint64, b []byte) error {
	copy(u.mem[at:], b)
	return nil
}

func (u *unwound) SetUnwind(list uint64) error {
	if u.fail != nil {
		return u.fail
	}
	u.word = list
	return nil
}

// find gives the object in which the walk would find an address, and its index.
func (u *unwound) find(pc uint64) (start, index uint64, ok bool) {
	le := binary.LittleEndian
	for i := int(le.Uint64(u.mem[u.word:])) - 1; i >= 0; i-- {
		e := u.mem[u.word+native.UnwindEntryAt(i):]
		if start := le.Uint64(e); pc-start < le.Uint64(e[8:]) {
			return start, le.Uint64(e[16:]), true
		}
	}
	return 0, 0, false
}

// TestUnwindTables has objects come and go: the walk finds what is there, all that comes together is mapped at once, and what
// fails is made good by the next update.
func TestUnwindTables(t *testing.T) {
	f, err := os.Open("/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im := func() *symbol.Image {
		im, err := symbol.Open(f, st.Size(), f.Name(), &symbol.Options{NoDebugFiles: true})
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	mem := &unwound{mem: make([]byte, 64)}
	u := &unwindTables{t: mem, images: map[*symbol.Image]native.UnwindObject{}}
	one, two := im(), im()
	lo, _ := one.Frames(func(symbol.Frame) {})
	has := func(what string, bias uint64, want bool) {
		t.Helper()
		if start, _, ok := mem.find(bias + lo + 5); ok != want || ok && start != bias+lo {
			t.Errorf("%s: 0x%x, %v", what, start, ok)
		}
	}
	space := symbol.NewSpace()
	space.Add(one, 0x10000000, "one")
	space.Add(two, 0x20000000, "two")
	mem.fail = errors.New("no memory")
	if err := u.update(space, interval.Range{}); !errors.Is(err, mem.fail) || mem.word != 0 {
		t.Errorf("%v, list at 0x%x", err, mem.word)
	}
	mem.fail = nil
	stubs := interval.Range{Start: 0x70000000, End: 0x70100000}
	if err := u.update(space, stubs); err != nil || mem.word == 0 || mem.stops != 1 {
		t.Fatalf("%v, list at 0x%x, %d stops", err, mem.word, mem.stops)
	}
	has("the first", 0x10000000, true)
	has("the second", 0x20000000, true)
	if start, _, ok := mem.find(stubs.Start + 100); !ok || start != stubs.Start {
		t.Errorf("stubs: 0x%x, %v", start, ok)
	}
	// Two objects take turns at one address.
	for i := range 600 {
		turn := symbol.NewSpace()
		turn.Add([]*symbol.Image{one, two}[i%2], 0x30000000, "turn")
		if err := u.update(turn, stubs); err != nil {
			t.Fatal(err)
		}
		o := u.images[[]*symbol.Image{one, two}[i%2]]
		if _, index, _ := mem.find(0x30000000 + lo); index != o.Index {
			t.Fatalf("turn %d: the tables at 0x%x, want those at 0x%x", i, index, o.Index)
		}
		has("in turn", 0x30000000, true)
	}
	if mem.stops != 1 {
		t.Errorf("%d times tables were mapped", mem.stops)
	}
}
