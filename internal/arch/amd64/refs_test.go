package amd64

import (
	"encoding/hex"
	"slices"
	"testing"
)

// TestLongBranches: a jump counts if all of it is in the code, also at its very end.
func TestLongBranches(t *testing.T) {
	for _, c := range []struct {
		name, code string
		want       []uint64 // offset, to
	}{
		{"jmp and call", "e9fb0f0000e8f60f0000", []uint64{0, 0x2000, 5, 0x2000}},
		{"back", "90e9fafeffff", []uint64{1, 0xf00}},
		{"jcc", "0f84fa0f0000", []uint64{0, 0x2000}},
		{"cut short", "e9fb0f00", nil},
		{"jcc cut short", "0f84fa0f00", nil},
		{"inside another", "b8e9fb0f000000", []uint64{1, 0x2001}},
		{"not wide", "eb10740e", nil},
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for off, to := range LongBranches(code, 0x1000) {
			got = append(got, uint64(off), to)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

// TestShortJumps: a walk that begins inside an instruction meets the next ones.
func TestShortJumps(t *testing.T) {
	for _, c := range []struct {
		name, code string
		want       []uint64
	}{
		{"jmp and jcc", "eb1074fe", []uint64{0x1012, 0x1002}},
		{"loop and jrcxz", "e2fee300", []uint64{0x1000, 0x1004}},
		{"wide", "e9fb0f00000f84fa0f0000", nil},
		{"behind no instruction", "06eb00", []uint64{0x1003}},
		{"in an immediate", "b8eb00eb00", nil},
		{"cut short", "90eb", nil},
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(ShortJumps(code, 0x1000)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}
