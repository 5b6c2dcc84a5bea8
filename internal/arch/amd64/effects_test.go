package amd64

import "testing"

// TestEffects pins what runs on no processor here, or only in a kernel, and that
// common instructions claim no more than they do.
func TestEffects(t *testing.T) {
	const dxAX = setDX | setAX
	for name, c := range map[string]struct {
		code string
		want Effects
	}{
		"mov_reg_reg":            {"48 89 e5", Effects{Reads: setSP, Writes: setBP, Kills: setBP}},
		"mov_32_kills":           {"89 c8", Effects{Reads: setCX, Writes: setAX, Kills: setAX}},
		"mov_16_keeps":           {"66 89 c8", Effects{Reads: setCX, Writes: setAX}},
		"mov_ah":                 {"88 cc", Effects{Reads: setCX, Writes: setAX}},
		"mov_spl":                {"40 88 cc", Effects{Reads: setCX, Writes: setSP}},
		"mov_imm64":              {"49 bb ef cd ab 89 67 45 23 01", Effects{Writes: Set(R11), Kills: Set(R11)}},
		"load_rip":               {"48 8b 05 fc ff ff ff", Effects{Writes: setAX, Kills: setAX, MemRead: true, MayFault: true}},
		"store_sib":              {"4a 89 44 a3 08", Effects{Reads: setAX | setBX | Set(R12), MemWrite: true, MayFault: true}},
		"load_no_base":           {"8b 04 cd 00 00 00 00", Effects{Reads: setCX, Writes: setAX, Kills: setAX, MemRead: true, MayFault: true}},
		"load_moffs":             {"a1 88 77 66 55 44 33 22 11", Effects{Writes: setAX, Kills: setAX, MemRead: true, MayFault: true}},
		"lea":                    {"48 8d 44 0a 08", Effects{Reads: setCX | setDX, Writes: setAX, Kills: setAX}},
		"xor_zero":               {"31 c0", Effects{Writes: setAX | Flags, Kills: setAX | Flags}},
		"sub_zero_r9":            {"4d 29 c9", Effects{Writes: Set(R9) | Flags, Kills: Set(R9) | Flags}},
		"xor_other_bank":         {"41 31 c0", Effects{Reads: setAX | Set(R8), Writes: Set(R8) | Flags, Kills: Set(R8) | Flags}},
		"xor_al_ah":              {"30 e0", Effects{Reads: setAX, Writes: setAX | Flags, Kills: Flags}},
		"sbb_same":               {"19 c0", Effects{Reads: Flags, Writes: setAX | Flags, Kills: setAX | Flags}},
		"adc":                    {"11 c8", Effects{Reads: setAX | setCX | Flags, Writes: setAX | Flags, Kills: setAX | Flags}},
		"cmp_imm":                {"48 83 f8 01", Effects{Reads: setAX, Writes: Flags, Kills: Flags}},
		"test":                   {"85 c0", Effects{Reads: setAX, Writes: Flags, Kills: Flags}},
		"inc_keeps_cf":           {"ff c0", Effects{Reads: setAX, Writes: setAX | Flags, Kills: setAX}},
		"shl_1":                  {"d1 e0", Effects{Reads: setAX, Writes: setAX | Flags, Kills: setAX | Flags}},
		"shl_imm":                {"c1 e0 04", Effects{Reads: setAX, Writes: setAX | Flags, Kills: setAX | Flags}},
		"shl_imm_32_is_0":        {"c1 e0 20", Effects{Reads: setAX, Writes: setAX | Flags, Kills: setAX}},
		"shl_imm_32_of_64":       {"48 c1 e0 20", Effects{Reads: setAX, Writes: setAX | Flags, Kills: setAX | Flags}},
		"shl_cl":                 {"d3 e0", Effects{Reads: setAX | setCX, Writes: setAX | Flags, Kills: setAX}},
		"rol_imm":                {"c1 c0 04", Effects{Reads: setAX, Writes: setAX | Flags, Kills: setAX}},
		"cmov":                   {"0f 44 c1", Effects{Reads: setCX | Flags, Writes: setAX}},
		"setcc":                  {"0f 94 c4", Effects{Reads: Flags, Writes: setAX}},
		"bsf":                    {"0f bc c1", Effects{Reads: setCX, Writes: setAX | Flags}},
		"popcnt":                 {"f3 0f b8 c1", Effects{Reads: setCX, Writes: setAX | Flags, Kills: setAX | Flags}},
		"imul":                   {"0f af c1", Effects{Reads: setAX | setCX, Writes: setAX | Flags, Kills: setAX}},
		"mul":                    {"48 f7 e1", Effects{Reads: setAX | setCX, Writes: dxAX | Flags, Kills: dxAX}},
		"mul_byte":               {"f6 e1", Effects{Reads: setAX | setCX, Writes: setAX | Flags}},
		"div":                    {"f7 f1", Effects{Reads: dxAX | setCX, Writes: dxAX | Flags, Kills: dxAX, MayFault: true}},
		"cqo":                    {"48 99", Effects{Reads: setAX, Writes: setDX, Kills: setDX}},
		"cwd":                    {"66 99", Effects{Reads: setAX, Writes: setDX}},
		"nop_mem":                {"0f 1f 44 00 00", Effects{}},
		"endbr64":                {"f3 0f 1e fa", Effects{}},
		"prefetch":               {"0f 18 08", Effects{Reads: setAX}},
		"push":                   {"53", Effects{Reads: setBX | setSP, Writes: setSP, MemWrite: true, MayFault: true}},
		"pop":                    {"5b", Effects{Reads: setSP, Writes: setBX | setSP, Kills: setBX, MemRead: true, MayFault: true}},
		"pushf":                  {"9c", Effects{Reads: setSP | Flags, Writes: setSP, MemWrite: true, MayFault: true}},
		"popf":                   {"9d", Effects{Reads: setSP, Writes: setSP | Flags, Kills: Flags, MemRead: true, MayFault: true}},
		"leave":                  {"c9", Effects{Reads: setBP, Writes: setSP | setBP, Kills: setSP | setBP, MemRead: true, MayFault: true}},
		"ret":                    {"c3", Effects{Reads: setSP, Writes: setSP, MemRead: true, MayFault: true}},
		"call":                   {"e8 00 00 00 00", Effects{Reads: setSP, Writes: setSP, MemWrite: true, MayFault: true}},
		"call_reg":               {"ff d0", Effects{Reads: setAX | setSP, Writes: setSP, MemWrite: true, MayFault: true}},
		"call_mem":               {"ff 53 08", Effects{Reads: setBX | setSP, Writes: setSP, MemRead: true, MemWrite: true, MayFault: true}},
		"jmp_table":              {"ff 24 c5 00 00 00 00", Effects{Reads: setAX, MemRead: true, MayFault: true}},
		"jcc":                    {"74 00", Effects{Reads: Flags}},
		"jrcxz":                  {"e3 00", Effects{Reads: setCX}},
		"loop":                   {"e2 00", Effects{Reads: setCX, Writes: setCX}},
		"movs":                   {"a4", Effects{Reads: setSI | setDI, Writes: setSI | setDI, MemRead: true, MemWrite: true, MayFault: true}},
		"rep_stos":               {"f3 48 ab", Effects{Reads: setAX | setCX | setDI, Writes: setCX | setDI, MemWrite: true, MayFault: true}},
		"repne_scas":             {"f2 ae", Effects{Reads: setAX | setCX | setDI, Writes: setCX | setDI | Flags, MemRead: true, MayFault: true}},
		"cmps":                   {"a7", Effects{Reads: setSI | setDI, Writes: setSI | setDI | Flags, Kills: Flags, MemRead: true, MayFault: true}},
		"outsb":                  {"6e", Effects{Reads: setDX | setSI, Writes: setSI, MemRead: true, MayFault: true}},
		"cmpxchg":                {"f0 0f b1 0f", Effects{Reads: setAX | setCX | setDI, Writes: setAX | Flags, Kills: Flags, MemRead: true, MemWrite: true, MayFault: true}},
		"cmpxchg16b":             {"48 0f c7 0e", Effects{Reads: dxAX | setBX | setCX | setSI, Writes: dxAX | Flags, MemRead: true, MemWrite: true, MayFault: true}},
		"xchg_r8":                {"49 90", Effects{Reads: setAX | Set(R8), Writes: setAX | Set(R8), Kills: setAX | Set(R8)}},
		"cpuid":                  {"0f a2", Effects{Reads: setAX | setCX, Writes: dxAX | setBX | setCX, Kills: dxAX | setBX | setCX, MayFault: true}},
		"rdtsc":                  {"0f 31", Effects{Writes: dxAX, Kills: dxAX, MayFault: true}},
		"rdtscp":                 {"0f 01 f9", Effects{Writes: dxAX | setCX, Kills: dxAX | setCX, MayFault: true}},
		"rdrand":                 {"0f c7 f1", Effects{Writes: setCX | Flags, Kills: setCX | Flags, MayFault: true}},
		"rdrand_16":              {"66 0f c7 f1", Effects{Writes: setCX | Flags, Kills: Flags, MayFault: true}},
		"rdpid":                  {"f3 0f c7 f9", Effects{Writes: setCX, Kills: setCX, MayFault: true}},
		"wrmsr":                  {"0f 30", Effects{Reads: dxAX | setCX, MayFault: true}},
		"rdmsr":                  {"0f 32", Effects{Reads: setCX, Writes: dxAX, Kills: dxAX, MayFault: true}},
		"rdssp":                  {"f3 48 0f 1e c9", Effects{Writes: setCX}},
		"xsave":                  {"0f ae 27", Effects{Reads: dxAX | setDI, MemRead: true, MemWrite: true, MayFault: true}},
		"fnstsw_ax":              {"df e0", Effects{Writes: setAX, MayFault: true}},
		"fcomi":                  {"db f1", Effects{Writes: Flags, MayFault: true}},
		"movd_from_reg":          {"66 0f 6e c1", Effects{Reads: setCX, MayFault: true}},
		"movd_to_reg":            {"66 0f 7e c1", Effects{Writes: setCX, Kills: setCX, MayFault: true}},
		"movaps_load":            {"0f 28 01", Effects{Reads: setCX, MemRead: true, MayFault: true}},
		"movaps_store":           {"0f 29 01", Effects{Reads: setCX, MemWrite: true, MayFault: true}},
		"pmovmskb":               {"66 0f d7 c1", Effects{Writes: setAX, Kills: setAX, MayFault: true}},
		"ucomiss":                {"0f 2e c1", Effects{Writes: Flags, Kills: Flags, MayFault: true}},
		"maskmovdqu":             {"66 0f f7 c1", Effects{Reads: setDI, MemRead: true, MemWrite: true, MayFault: true}},
		"movdir64b":              {"66 0f 38 f8 01", Effects{Reads: setAX | setCX, MemRead: true, MemWrite: true, MayFault: true}},
		"andn":                   {"c4 62 a0 f2 c1", Effects{Reads: setCX | Set(R11), Writes: Set(R8) | Flags, Kills: Set(R8) | Flags}},
		"mulx":                   {"c4 e2 f3 f6 c3", Effects{Reads: setBX | setDX, Writes: setAX | setCX, Kills: setAX | setCX}},
		"shlx":                   {"c4 e2 71 f7 c3", Effects{Reads: setBX | setCX, Writes: setAX, Kills: setAX}},
		"blsr":                   {"c4 e2 78 f3 cb", Effects{Reads: setBX, Writes: setAX | Flags, Kills: setAX | Flags}},
		"cmpccxadd":              {"c4 e2 71 e4 03", Effects{Reads: setAX | setCX | setBX, Writes: setAX | Flags, Kills: setAX | Flags, MemRead: true, MemWrite: true, MayFault: true}},
		"gather_index_is_vector": {"c4 e2 69 92 04 0b", Effects{Reads: setBX, MemRead: true, MayFault: true}},
		"evex_load":              {"62 f1 7c 48 10 40 01", Effects{Reads: setAX, MemRead: true, MayFault: true}},
		"evex_load_base_r16":     {"62 f9 7c 48 10 40 01", Effects{MemRead: true, MayFault: true}},
		"vpbroadcastd_from_reg":  {"62 f2 7d 48 7c c1", Effects{Reads: setCX, MayFault: true}},
		"syscall":                {"0f 05", Effects{Reads: AllRegs, Writes: Set(RAX, RCX, R11), MemRead: true, MemWrite: true, MayFault: true}},
		"unknown_int3":           {"cc", unknown},
		"unknown_int80":          {"cd 80", unknown},
		"unknown_ud2":            {"0f 0b", unknown},
		"unknown_iretq":          {"48 cf", unknown},
		"unknown_xbegin":         {"c7 f8 00 00 00 00", unknown},
		"unknown_sysret":         {"48 0f 07", unknown},
		"unknown_swapgs":         {"0f 01 f8", unknown},
		"unknown_mov_cr0":        {"0f 22 c0", unknown},
		"unknown_f2_and_f3":      {"f2 f3 0f b8 c1", unknown},
		"unknown_tbm":            {"8f e9 68 01 c9", unknown},
		"unknown_apx":            {"62 f4 7c 18 f7 d9", unknown},
		"unknown_rex2":           {"d5 19 89 c0", unknown},
		"unknown_vex":            {"c4 e2 79 ff c0", unknown},
		"unknown_vex_group":      {"c4 e2 78 f3 e3", unknown},
		"unknown_key_locker":     {"f3 0f 38 dc 01", unknown},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := Decode(decodeHex(t, c.code))
			if err != nil {
				t.Fatal(err)
			}
			if got := in.Effects(); got != c.want {
				t.Errorf("%s:\ngot  %+v\nwant %+v", c.code, got, c.want)
			}
		})
	}
}

func BenchmarkEffects(b *testing.B) {
	in, err := Decode(decodeHex(b, "4a 89 44 a3 08"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if in.Effects().Kills != 0 {
			b.Fatal("a store kills nothing")
		}
	}
}
