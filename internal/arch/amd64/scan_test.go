package amd64

import (
	"encoding/hex"
	"testing"
)

func TestFirstFSLoad(t *testing.T) {
	for _, c := range []struct {
		name, code string
		off        int32
		ok         bool
	}{
		{"mov_fs_disp32", "64488b0c25f8ffffff", -8, true},
		{"mov_imm_then_mov_fs_reg", "48c7c1f8ffffff64488b39", -8, true},
		{"another_register_is_known", "48c7c0f8ffffff64488b39", 0, false},
		{"register_is_not_known", "64488b39", 0, false},
		{"base_and_displacement", "48c7c1f8ffffff64488b7908", 0, false},
		{"no_load", "4889c8c3", 0, false},
		{"cut_short", "64488b0c25f8ff", 0, false},
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		if off, ok := FirstFSLoad(code); off != c.off || ok != c.ok {
			t.Errorf("%s: %d, %v, want %d, %v", c.name, off, ok, c.off, c.ok)
		}
	}
}

func TestJumpsInto(t *testing.T) {
	for _, c := range []struct {
		name, code string
		want       bool
	}{
		{"jmp", "90e9fa0f0000", true}, // to 0x2000
		{"before", "0f84f90f0000", false},
		{"jcc", "0f84fa0f0000", true},
		{"end", "0f840a100000", false}, // to 0x2010
		{"last byte", "0f8409100000", true},
		{"call", "e8fb0f0000", false},
		{"cut short", "e9fb0f00", false},
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		if got := JumpsInto(code, 0x1000, 0x2000, 0x2010); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
