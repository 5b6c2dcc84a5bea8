package process

import (
	"errors"
	"slices"
	"testing"
)

// words is memory of a few words.
type words map[uint64]uint64

func (w words) Read(addr uint64, buf []byte) error {
	for i := 0; i < len(buf); i += 8 {
		v, ok := w[addr+uint64(i)]
		if !ok {
			return errors.New("not there")
		}
		le.PutUint64(buf[i:], v)
	}
	return nil
}

func (w words) Write(uint64, []byte) error { return errors.New("read only") }

func TestWalkFrames(t *testing.T) {
	const code = 0x400000
	stack := words{
		0x9000: code + 1,                 // return address at the stack pointer
		0x9010: 0x9030, 0x9018: code + 2, // two frames
		0x9030: 0x9050, 0x9038: code + 3,
		0x9050: 0, 0x9058: code + 4, // the last one
		0x9100: 0x9100, 0x9108: code + 5, // leads to itself
		0x9200: 0x9100, 0x9208: code + 6, // leads down
		0x9300: 0x9400, 0x9308: 7, // returns to no code
		0x9500: 1 << 40, 0x9508: code + 8, // leads far away
		0x9600: 0x9621, 0x9608: code + 9, // leads to half a word
	}
	for _, c := range []struct {
		name   string
		sp, bp uint64
		ret    int
		room   int
		want   []uint64
	}{
		{"entry", 0x9000, 0x9010, 0, 9, []uint64{1, 2, 3, 4}},
		{"frame set up", 0x9000, 0x9010, 0x18, 9, []uint64{2, 3, 4}},
		{"unknown", 0x9000, 0x9010, -1, 9, []uint64{2, 3, 4}},
		{"little room", 0x9000, 0x9010, 0, 2, []uint64{1, 2}},
		{"no room", 0x9000, 0x9010, 0, 0, nil},
		{"no frame pointer", 0x9000, 12, 0, 9, []uint64{1}},
		{"frame pointer below", 0x9000, 0x8ff0, 0, 9, []uint64{1}},
		{"stack is not there", 0x5000, 0x9010, 0, 9, nil},
		{"frame is not there", 0x9000, 0x9700, 0, 9, []uint64{1}},
		{"to itself", 0x9000, 0x9100, -1, 9, []uint64{5}},
		{"down", 0x9000, 0x9200, -1, 9, []uint64{6}},
		{"no code", 0x9000, 0x9300, -1, 9, nil},
		{"far away", 0x9000, 0x9500, -1, 9, []uint64{8}},
		{"half a word", 0x9000, 0x9600, -1, 9, []uint64{9}},
	} {
		pcs := make([]uint64, c.room)
		got := pcs[:walkFrames(stack, c.sp, c.bp, c.ret, pcs)]
		var want []uint64
		for _, n := range c.want {
			want = append(want, code+n)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %#x, want %#x", c.name, got, want)
		}
	}
}
