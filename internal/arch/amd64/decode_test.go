package amd64

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// decodeHex reads bytes written as "48 89 e5".
func decodeHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		code string
		want Inst // without Len, which is that of code
	}{
		"nop":                 {"90", Inst{Opcode: 0x90}},
		"push_r12":            {"41 54", Inst{Opcode: 0x54, Rex: 0x41, OpOff: 1}},
		"mov_rsp_rbp":         {"48 89 e5", Inst{Opcode: 0x89, Rex: 0x48, OpOff: 1, HasModRM: true, ModRM: 0xe5, ModRMOff: 2}},
		"endbr64":             {"f3 0f 1e fa", Inst{Map: Map0F, Opcode: 0x1e, Prefix: PrefixRep, OpOff: 2, HasModRM: true, ModRM: 0xfa, ModRMOff: 3}},
		"sib_no_base":         {"8b 04 25 44 33 22 11", Inst{Opcode: 0x8b, HasModRM: true, ModRM: 4, ModRMOff: 1, HasSIB: true, SIB: 0x25, DispOff: 3, DispLen: 4}},
		"sib_r13_no_disp":     {"43 8b 04 2c", Inst{Opcode: 0x8b, Rex: 0x43, OpOff: 1, HasModRM: true, ModRM: 4, ModRMOff: 2, HasSIB: true, SIB: 0x2c}},
		"rip_relative":        {"48 8b 05 fc ff ff ff", Inst{Opcode: 0x8b, Rex: 0x48, OpOff: 1, HasModRM: true, ModRM: 5, ModRMOff: 2, DispOff: 3, DispLen: 4, RelOff: 3, RelLen: 4, RIPMem: true, Rel: -4}},
		"rip_relative_imm":    {"66 c7 05 01 00 00 00 34 12", Inst{Opcode: 0xc7, Prefix: PrefixOpSize, OpOff: 1, HasModRM: true, ModRM: 5, ModRMOff: 2, DispOff: 3, DispLen: 4, RelOff: 3, RelLen: 4, RIPMem: true, Rel: 1, ImmOff: 7, ImmLen: 2, Imm: 0x1234}},
		"rip_relative_vex":    {"c5 f8 28 05 10 00 00 00", Inst{Enc: EncVEX, Map: Map0F, Opcode: 0x28, Rex: 0x40, OpOff: 2, HasModRM: true, ModRM: 5, ModRMOff: 3, DispOff: 4, DispLen: 4, RelOff: 4, RelLen: 4, RIPMem: true, Rel: 16}},
		"rip_relative_evex":   {"62 f1 7c 48 10 05 10 00 00 00", Inst{Enc: EncEVEX, Map: Map0F, Opcode: 0x10, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 5, ModRMOff: 5, DispOff: 6, DispLen: 4, RelOff: 6, RelLen: 4, RIPMem: true, Rel: 16}},
		"rip_relative_xop":    {"8f e8 78 c0 05 10 00 00 00 07", Inst{Enc: EncXOP, Map: MapXOP8, Opcode: 0xc0, Rex: 0x40, OpOff: 3, HasModRM: true, ModRM: 5, ModRMOff: 4, DispOff: 5, DispLen: 4, RelOff: 5, RelLen: 4, RIPMem: true, Rel: 16, ImmOff: 9, ImmLen: 1, Imm: 7}},
		"jmp_short":           {"eb fe", Inst{Opcode: 0xeb, Kind: KindJmp, ImmOff: 1, ImmLen: 1, Imm: -2, RelOff: 1, RelLen: 1, Rel: -2}},
		"jmp_near":            {"e9 00 00 00 80", Inst{Opcode: 0xe9, Kind: KindJmp, ImmOff: 1, ImmLen: 4, Imm: -1 << 31, RelOff: 1, RelLen: 4, Rel: -1 << 31}},
		"jmp_near_66":         {"66 e9 01 00 00 00", Inst{Opcode: 0xe9, Kind: KindJmp, Prefix: PrefixOpSize, OpOff: 1, ImmOff: 2, ImmLen: 4, Imm: 1, RelOff: 2, RelLen: 4, Rel: 1}},
		"call_data16_rex":     {"66 48 e8 01 00 00 00", Inst{Opcode: 0xe8, Kind: KindCall, Prefix: PrefixOpSize, Rex: 0x48, RexOff: 1, OpOff: 2, ImmOff: 3, ImmLen: 4, Imm: 1, RelOff: 3, RelLen: 4, Rel: 1}},
		"jne_near":            {"0f 85 01 00 00 00", Inst{Map: Map0F, Opcode: 0x85, Kind: KindJcc, OpOff: 1, ImmOff: 2, ImmLen: 4, Imm: 1, RelOff: 2, RelLen: 4, Rel: 1}},
		"jrcxz":               {"e3 05", Inst{Opcode: 0xe3, Kind: KindLoop, ImmOff: 1, ImmLen: 1, Imm: 5, RelOff: 1, RelLen: 1, Rel: 5}},
		"xbegin":              {"c7 f8 05 00 00 00", Inst{Opcode: 0xc7, Kind: KindXbegin, HasModRM: true, ModRM: 0xf8, ModRMOff: 1, ImmOff: 2, ImmLen: 4, Imm: 5, RelOff: 2, RelLen: 4, Rel: 5}},
		"xbegin_66":           {"66 c7 f8 fb ff", Inst{Opcode: 0xc7, Kind: KindXbegin, Prefix: PrefixOpSize, OpOff: 1, HasModRM: true, ModRM: 0xf8, ModRMOff: 2, ImmOff: 3, ImmLen: 2, Imm: -5, RelOff: 3, RelLen: 2, Rel: -5}},
		"bnd_ret":             {"f2 c3", Inst{Opcode: 0xc3, Kind: KindRet, Prefix: PrefixRepne, OpOff: 1}},
		"ret_imm":             {"c2 08 00", Inst{Opcode: 0xc2, Kind: KindRet, ImmOff: 1, ImmLen: 2, Imm: 8}},
		"notrack_jmp_rax":     {"3e ff e0", Inst{Opcode: 0xff, Kind: KindJmpInd, Prefix: PrefixDS, OpOff: 1, HasModRM: true, ModRM: 0xe0, ModRMOff: 2}},
		"call_mem":            {"ff 53 08", Inst{Opcode: 0xff, Kind: KindCallInd, HasModRM: true, ModRM: 0x53, ModRMOff: 1, DispOff: 2, DispLen: 1}},
		"far_jmp":             {"ff 2f", Inst{Opcode: 0xff, Kind: KindFar, HasModRM: true, ModRM: 0x2f, ModRMOff: 1}},
		"iretq":               {"48 cf", Inst{Opcode: 0xcf, Kind: KindFar, Rex: 0x48, OpOff: 1}},
		"uiret":               {"f3 0f 01 ec", Inst{Map: Map0F, Opcode: 1, Kind: KindFar, Prefix: PrefixRep, OpOff: 2, HasModRM: true, ModRM: 0xec, ModRMOff: 3}},
		"syscall":             {"0f 05", Inst{Map: Map0F, Opcode: 5, Kind: KindSyscall, OpOff: 1}},
		"int3":                {"cc", Inst{Opcode: 0xcc, Kind: KindInt3}},
		"int_80":              {"cd 80", Inst{Opcode: 0xcd, Kind: KindInt, ImmOff: 1, ImmLen: 1, Imm: -128}},
		"ud2":                 {"0f 0b", Inst{Map: Map0F, Opcode: 0x0b, Kind: KindUndef, OpOff: 1}},
		"ud1":                 {"67 0f b9 40 08", Inst{Map: Map0F, Opcode: 0xb9, Kind: KindUndef, Prefix: PrefixAddrSize, OpOff: 2, HasModRM: true, ModRM: 0x40, ModRMOff: 3, DispOff: 4, DispLen: 1}},
		"hlt":                 {"f4", Inst{Opcode: 0xf4, Kind: KindHlt}},
		"movabs_imm64":        {"49 bb ef cd ab 89 67 45 23 01", Inst{Opcode: 0xbb, Rex: 0x49, OpOff: 1, ImmOff: 2, ImmLen: 8, Imm: 0x0123456789abcdef}},
		"mov_imm16":           {"66 b8 ff ff", Inst{Opcode: 0xb8, Prefix: PrefixOpSize, OpOff: 1, ImmOff: 2, ImmLen: 2, Imm: -1}},
		"mov_66_rex_w":        {"66 48 c7 c0 ff ff ff ff", Inst{Opcode: 0xc7, Prefix: PrefixOpSize, Rex: 0x48, RexOff: 1, OpOff: 2, HasModRM: true, ModRM: 0xc0, ModRMOff: 3, ImmOff: 4, ImmLen: 4, Imm: -1}},
		"moffs64":             {"a1 88 77 66 55 44 33 22 11", Inst{Opcode: 0xa1, DispOff: 1, DispLen: 8}},
		"moffs32":             {"67 a2 44 33 22 11", Inst{Opcode: 0xa2, Prefix: PrefixAddrSize, OpOff: 1, DispOff: 2, DispLen: 4}},
		"enter":               {"c8 10 00 02", Inst{Opcode: 0xc8, ImmOff: 1, ImmLen: 3, Imm: 0x020010}},
		"test_imm8":           {"f6 c1 7f", Inst{Opcode: 0xf6, HasModRM: true, ModRM: 0xc1, ModRMOff: 1, ImmOff: 2, ImmLen: 1, Imm: 127}},
		"test_imm32_alias":    {"f7 c9 01 00 00 00", Inst{Opcode: 0xf7, HasModRM: true, ModRM: 0xc9, ModRMOff: 1, ImmOff: 2, ImmLen: 4, Imm: 1}},
		"neg":                 {"f7 d9", Inst{Opcode: 0xf7, HasModRM: true, ModRM: 0xd9, ModRMOff: 1}},
		"prefixes_any_order":  {"2e 66 f2 64 67 90", Inst{Opcode: 0x90, Prefix: PrefixCS | PrefixOpSize | PrefixRepne | PrefixFS | PrefixAddrSize, OpOff: 5}},
		"rex_before_66_void":  {"48 66 90", Inst{Opcode: 0x90, Prefix: PrefixOpSize, OpOff: 2}},
		"rex_before_rex_void": {"48 41 90", Inst{Opcode: 0x90, Rex: 0x41, RexOff: 1, OpOff: 2}},
		"popcnt":              {"f3 48 0f b8 c7", Inst{Map: Map0F, Opcode: 0xb8, Prefix: PrefixRep, Rex: 0x48, RexOff: 1, OpOff: 3, HasModRM: true, ModRM: 0xc7, ModRMOff: 4}},
		"crc32":               {"f2 0f 38 f0 c7", Inst{Map: Map0F38, Opcode: 0xf0, Prefix: PrefixRepne, OpOff: 3, HasModRM: true, ModRM: 0xc7, ModRMOff: 4}},
		"palignr":             {"66 0f 3a 0f c1 08", Inst{Map: Map0F3A, Opcode: 0x0f, Prefix: PrefixOpSize, OpOff: 3, HasModRM: true, ModRM: 0xc1, ModRMOff: 4, ImmOff: 5, ImmLen: 1, Imm: 8}},
		"pfadd_3dnow":         {"0f 0f 48 10 9e", Inst{Map: Map3DN, Opcode: 0x9e, OpOff: 1, HasModRM: true, ModRM: 0x48, ModRMOff: 2, DispOff: 3, DispLen: 1, ImmOff: 4, ImmLen: 1, Imm: -98}},
		"extrq":               {"66 0f 78 c1 01 02", Inst{Map: Map0F, Opcode: 0x78, Prefix: PrefixOpSize, OpOff: 2, HasModRM: true, ModRM: 0xc1, ModRMOff: 3, ImmOff: 4, ImmLen: 2, Imm: 0x201}},
		"vmread":              {"0f 78 c1", Inst{Map: Map0F, Opcode: 0x78, OpOff: 1, HasModRM: true, ModRM: 0xc1, ModRMOff: 2}},
		"mov_cr0_ignores_mod": {"0f 22 04", Inst{Map: Map0F, Opcode: 0x22, OpOff: 1, HasModRM: true, ModRM: 4, ModRMOff: 2}},
		"pop_mem":             {"8f 00", Inst{Opcode: 0x8f, HasModRM: true, ModRMOff: 1}},
		"vzeroupper":          {"c5 f8 77", Inst{Enc: EncVEX, Map: Map0F, Opcode: 0x77, Rex: 0x40, OpOff: 2}},
		"andn":                {"c4 62 a0 f2 c1", Inst{Enc: EncVEX, Map: Map0F38, Opcode: 0xf2, Rex: 0x4c, OpOff: 3, HasModRM: true, ModRM: 0xc1, ModRMOff: 4, Vvvv: 11}},
		"vex_segment":         {"64 c5 fb 10 00", Inst{Enc: EncVEX, Map: Map0F, Opcode: 0x10, Prefix: PrefixFS | PrefixRepne, Rex: 0x40, RexOff: 1, OpOff: 3, HasModRM: true, ModRMOff: 4}},
		"rorx":                {"c4 e3 fb f0 c1 03", Inst{Enc: EncVEX, Map: Map0F3A, Opcode: 0xf0, Prefix: PrefixRepne, Rex: 0x48, OpOff: 3, HasModRM: true, ModRM: 0xc1, ModRMOff: 4, ImmOff: 5, ImmLen: 1, Imm: 3}},
		"urdmsr_imm32":        {"c4 e7 7b f8 c0 10 00 00 00", Inst{Enc: EncVEX, Map: Map7, Opcode: 0xf8, Prefix: PrefixRepne, Rex: 0x40, OpOff: 3, HasModRM: true, ModRM: 0xc0, ModRMOff: 4, ImmOff: 5, ImmLen: 4, Imm: 16}},
		"vex_unassigned":      {"c4 e2 79 ff c0", Inst{Enc: EncVEX, Map: Map0F38, Opcode: 0xff, Prefix: PrefixOpSize, Rex: 0x40, OpOff: 3, HasModRM: true, ModRM: 0xc0, ModRMOff: 4}},
		"evex_disp8":          {"62 f1 7c 48 10 40 01", Inst{Enc: EncEVEX, Map: Map0F, Opcode: 0x10, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0x40, ModRMOff: 5, DispOff: 6, DispLen: 1}},
		"evex_high_registers": {"62 01 3c 40 58 c1", Inst{Enc: EncEVEX, Map: Map0F, Opcode: 0x58, Rex: 0x47, OpOff: 4, HasModRM: true, ModRM: 0xc1, ModRMOff: 5, Vvvv: 24, Ext: 4}},
		"evex_fp16_map5":      {"62 f5 74 48 58 c2", Inst{Enc: EncEVEX, Map: Map5, Opcode: 0x58, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0xc2, ModRMOff: 5, Vvvv: 1}},
		"evex_fp16_map6":      {"62 f6 75 48 98 c2", Inst{Enc: EncEVEX, Map: Map6, Opcode: 0x98, Prefix: PrefixOpSize, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0xc2, ModRMOff: 5, Vvvv: 1}},
		"apx_add_imm_ndd":     {"62 f4 7c 18 81 c1 44 33 22 11", Inst{Enc: EncEVEX, Map: Map4, Opcode: 0x81, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0xc1, ModRMOff: 5, ImmOff: 6, ImmLen: 4, Imm: 0x11223344}},
		"apx_add_imm16":       {"62 f4 7d 18 81 c1 22 11", Inst{Enc: EncEVEX, Map: Map4, Opcode: 0x81, Prefix: PrefixOpSize, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0xc1, ModRMOff: 5, ImmOff: 6, ImmLen: 2, Imm: 0x1122}},
		"apx_neg":             {"62 f4 7c 18 f7 d9", Inst{Enc: EncEVEX, Map: Map4, Opcode: 0xf7, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0xd9, ModRMOff: 5}},
		"apx_test":            {"62 f4 7c 08 f6 c1 01", Inst{Enc: EncEVEX, Map: Map4, Opcode: 0xf6, Rex: 0x40, OpOff: 4, HasModRM: true, ModRM: 0xc1, ModRMOff: 5, ImmOff: 6, ImmLen: 1, Imm: 1}},
		"rex2_mov_r16":        {"d5 19 89 c0", Inst{Enc: EncREX2, Opcode: 0x89, Rex: 0x49, Ext: 1, OpOff: 2, HasModRM: true, ModRM: 0xc0, ModRMOff: 3}},
		"rex2_map1":           {"66 d5 80 af c1", Inst{Enc: EncREX2, Map: Map0F, Opcode: 0xaf, Prefix: PrefixOpSize, Rex: 0x40, RexOff: 1, OpOff: 3, HasModRM: true, ModRM: 0xc1, ModRMOff: 4}},
		"rex2_jmpabs":         {"d5 00 a1 08 07 06 05 04 03 02 01", Inst{Enc: EncREX2, Opcode: 0xa1, Kind: KindJmpInd, Rex: 0x40, OpOff: 2, ImmOff: 3, ImmLen: 8, Imm: 0x0102030405060708}},
		"xop_bextr_imm32":     {"8f ea 78 10 c1 03 02 01 00", Inst{Enc: EncXOP, Map: MapXOPA, Opcode: 0x10, Rex: 0x40, OpOff: 3, HasModRM: true, ModRM: 0xc1, ModRMOff: 4, ImmOff: 5, ImmLen: 4, Imm: 0x10203}},
		"xop_blcfill":         {"8f e9 68 01 c9", Inst{Enc: EncXOP, Map: MapXOP9, Opcode: 1, Rex: 0x40, OpOff: 3, HasModRM: true, ModRM: 0xc9, ModRMOff: 4, Vvvv: 2}},
		"fifteen_bytes":       {"66 66 66 66 66 66 66 66 66 66 66 66 66 66 90", Inst{Opcode: 0x90, Prefix: PrefixOpSize, OpOff: 14}},
		"fifteen_of_parts":    {"64 67 f0 4c 81 84 8b 44 33 22 11 04 03 02 01", Inst{Opcode: 0x81, Prefix: PrefixFS | PrefixAddrSize | PrefixLock, Rex: 0x4c, RexOff: 3, OpOff: 4, HasModRM: true, ModRM: 0x84, ModRMOff: 5, HasSIB: true, SIB: 0x8b, DispOff: 7, DispLen: 4, ImmOff: 11, ImmLen: 4, Imm: 0x1020304}},
	} {
		t.Run(name, func(t *testing.T) {
			code := decodeHex(t, c.code)
			c.want.Len = uint8(len(code))
			got, err := Decode(append(code, 0xcc, 0xcc))
			if err != nil || got != c.want {
				t.Errorf("% x:\ngot  %+v\nwant %+v\n%v", code, got, c.want, err)
			}
		})
	}
}

func TestDecodeInvalid(t *testing.T) {
	for name, code := range map[string]string{
		"push_es":            "06",
		"pop_es":             "07",
		"push_cs":            "0e",
		"daa":                "27",
		"das":                "2f",
		"aaa":                "37",
		"aas":                "3f",
		"pusha":              "60",
		"popa":               "61",
		"alias_82":           "82 c0 01",
		"far_call_imm":       "9a 00 00 00 00 00 00",
		"into":               "ce",
		"aam":                "d4 0a",
		"salc":               "d6",
		"far_jmp_imm":        "ea 00 00 00 00 00 00",
		"lea_register":       "8d c0",
		"pop_reg_4":          "8f 20",
		"xop_map_11":         "8f eb 78 10 c1",
		"xop_after_66":       "66 8f e9 68 01 c9",
		"mov_imm_reg_1":      "c7 c8 01 00 00 00",
		"group4_reg_2":       "fe d0",
		"group5_reg_7":       "ff f8",
		"far_call_register":  "ff d8",
		"popcnt_without_f3":  "0f b8 c0",
		"hole_0f_04":         "0f 04",
		"hole_0f_24":         "0f 24 c0",
		"hole_0f_3b":         "0f 3b c0",
		"vex_map_0":          "c4 e0 78 10 c0",
		"vex_map_4":          "c4 e4 78 10 c0",
		"vex_after_rex":      "48 c5 f8 77",
		"vex_after_66":       "66 c5 f8 77",
		"vex_after_lock":     "f0 c5 f8 77",
		"evex_map_0":         "62 f0 7c 48 10 c0",
		"evex_after_f3":      "f3 62 f1 7c 48 10 c0",
		"rex2_after_rex":     "48 d5 00 90",
		"rex2_prefix":        "d5 00 66 90",
		"rex2_jcc":           "d5 00 70 00",
		"rex2_map1_jcc":      "d5 80 84 00 00 00 00",
		"sixteen_bytes":      "66 66 66 66 66 66 66 66 66 66 66 66 66 66 66 90",
		"sixteen_with_imm":   "2e 2e 2e 2e 2e 2e 2e 2e 2e 2e 2e b8 44 33 22 11",
		"fifteen_prefixes":   "f0 f0 f0 f0 f0 f0 f0 f0 f0 f0 f0 f0 f0 f0 f0",
		"fifteen_and_no_sib": "66 66 66 66 66 66 66 66 66 66 66 66 66 8b 04 25",
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Decode(decodeHex(t, code))
			var e *DecodeError
			if !errors.Is(err, ErrInvalid) || !errors.As(err, &e) || len(e.Bytes) == 0 || len(e.Bytes) > MaxLen || in != (Inst{}) {
				t.Errorf("%+v, %v", in, err)
			}
		})
	}
}

func TestDecodeError(t *testing.T) {
	for code, want := range map[string]string{
		"48 8b 05 01": "instruction cut off after 4 bytes (48 8b 05 01): pass up to 15",
		"2e 06 90":    "invalid instruction in 64-bit mode: 2e 06 90, because of byte 1",
	} {
		if _, err := Decode(decodeHex(t, code)); err == nil || err.Error() != want {
			t.Errorf("%s: %q, want %q", code, err, want)
		}
	}
	if _, err := Decode(nil); !errors.Is(err, ErrTruncated) {
		t.Errorf("no bytes: %v", err)
	}
}

func TestTarget(t *testing.T) {
	for code, want := range map[string]uint64{
		"eb fe":                         0x1000,
		"e9 00 00 00 80":                0xffffffff80001005,
		"48 8b 05 fc ff ff ff":          0x1003,
		"66 c7 05 01 00 00 00 34 12":    0x100a,
		"62 f1 7c 48 10 05 10 00 00 00": 0x101a,
	} {
		in, err := Decode(decodeHex(t, code))
		if got, ok := in.Target(0x1000); err != nil || !ok || got != want {
			t.Errorf("%s: %#x %v, want %#x; %v", code, got, ok, want, err)
		}
	}
	for _, code := range []string{"90", "ff e0", "8b 04 25 44 33 22 11", "d5 00 a1 08 07 06 05 04 03 02 01"} {
		in, err := Decode(decodeHex(t, code))
		if got, ok := in.Target(0x1000); err != nil || ok {
			t.Errorf("%s: %#x; %v", code, got, err)
		}
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	code := decodeHex(t, "62 f1 7c 48 10 05 10 00 00 00")
	if n := testing.AllocsPerRun(100, func() {
		in, err := Decode(code)
		if err != nil || in.Effects().Kills != 0 {
			t.Error(in, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzDecode checks what holds for any bytes: the parts of an instruction follow
// one another up to its end, more bytes change nothing, fewer are truncated.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"90", "f3 0f 1e fa", "48 8b 05 fc ff ff ff", "66 48 e8 01 00 00 00", "a1 88 77 66 55 44 33 22 11", "c8 10 00 02",
		"f7 c9 01 00 00 00", "66 0f 78 c1 01 02", "0f 0f 48 10 9e", "c5 f8 28 05 10 00 00 00", "c4 e7 7b f8 c0 10 00 00 00",
		"62 01 3c 40 58 c1", "62 f4 7c 18 81 c1 44 33 22 11", "d5 00 a1 08 07 06 05 04 03 02 01", "8f e8 78 c0 05 10 00 00 00 07",
		"66 c7 f8 fb ff", "0f 22 04", "06", "66 66 66 66 66 66 66 66 66 66 66 66 66 66 66 90",
	} {
		f.Add(decodeHex(f, s))
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		in, err := Decode(code)
		if err != nil {
			checkRefused(t, code, err)
			return
		}
		checkParts(t, &in)
		n := int(in.Len)
		if again, err := Decode(code[:n:n]); err != nil || again != in {
			t.Errorf("% x: %+v with exactly its bytes, %+v with more, %v", code, again, in, err)
		}
		for i := range n {
			if _, err := Decode(code[:i]); !errors.Is(err, ErrTruncated) {
				t.Errorf("% x: %v for the first %d of %d bytes", code, err, i, n)
			}
		}
		if e := in.Effects(); e.Kills&^e.Writes != 0 || (e.Reads|e.Writes)&^AllRegs != 0 || (e.MemRead || e.MemWrite) && !e.MayFault {
			t.Errorf("% x: %+v", code[:n], e)
		}
	})
}

// checkRefused: an error is one of two, and truncated bytes leave room for more.
func checkRefused(t *testing.T, code []byte, err error) {
	t.Helper()
	truncated, invalid := errors.Is(err, ErrTruncated), errors.Is(err, ErrInvalid)
	if truncated == invalid || truncated && len(code) >= MaxLen {
		t.Errorf("% x: %v", code, err)
	}
}

// checkParts: opcode, ModRM, SIB, displacement and immediate lie side by side.
func checkParts(t *testing.T, in *Inst) {
	t.Helper()
	at := in.OpOff + 1
	part := func(what string, has bool, off, n uint8) {
		if has && off != at {
			t.Errorf("%+v: %s not at %d", in, what, at)
		}
		if has {
			at += n
		}
	}
	part("ModRM", in.HasModRM, in.ModRMOff, 1)
	part("SIB", in.HasSIB, at, 1)
	part("displacement", in.DispLen != 0, in.DispOff, in.DispLen)
	part("immediate", in.ImmLen != 0, in.ImmOff, in.ImmLen)
	if at != in.Len || in.Len > MaxLen || in.RexOff > in.OpOff {
		t.Errorf("%+v: ends at %d", in, at)
	}
	inDisp := in.RIPMem && in.RelOff == in.DispOff && in.RelLen == 4 && in.DispLen == 4
	inImm := !in.RIPMem && in.RelOff == in.ImmOff && in.RelLen == in.ImmLen && in.Rel == in.Imm
	if in.RelLen != 0 && !inDisp && !inImm {
		t.Errorf("%+v: the PC-relative field is elsewhere", in)
	}
}

func BenchmarkDecode(b *testing.B) {
	code := decodeHex(b, "55 4889e5 4154 4883ec20 488b05fcffffff 85c0 7405 e800000000 c5f82805f0ffffff 660f6fc1 62f17c48104001 c3")
	n := 0
	for b.Loop() {
		in, err := Decode(code[n:])
		if err != nil {
			b.Fatal(err)
		}
		if n += int(in.Len); n == len(code) {
			n = 0
		}
	}
}
