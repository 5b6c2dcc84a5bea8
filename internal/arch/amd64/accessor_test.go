package amd64

import "testing"

func TestAccessor(t *testing.T) {
	const addr = 0x1000
	for name, c := range map[string]struct {
		code  string
		next  uint64
		reads bool
		at    uint64 // 0: unknown
	}{
		"store":                     {"89 07 90 c3", 2, false, addr},                       // mov %eax,(%rdi); nop; ret
		"store behind another":      {"90 89 07 90 c3", 3, false, addr + 1},                // nop; mov %eax,(%rdi); nop
		"load":                      {"8b 07 90 c3", 2, true, addr},                        // mov (%rdi),%eax
		"load for writes":           {"8b 07 90 c3", 2, false, 0},                          //
		"read and write":            {"ff 07 90 c3", 2, false, addr},                       // incl (%rdi)
		"locked":                    {"f0 0f c1 07 90 c3", 4, false, addr},                 // lock xadd %eax,(%rdi)
		"push":                      {"50 90 c3", 1, false, addr},                          // push %rax
		"address only":              {"8d 07 90 c3", 2, true, 0},                           // lea (%rdi),%eax
		"register only":             {"89 c7 90 c3", 2, true, 0},                           // mov %eax,%edi
		"vector":                    {"c5 fe 7f 07 90 c3", 4, false, addr},                 // vmovdqu %ymm0,(%rdi)
		"the function's start":      {"89 07 90 c3", 0, false, 0},                          //
		"behind the function's end": {"89 07", 2, false, 0},                                //
		"behind a call":             {"e8 00 00 00 00 90 c3", 5, true, 0},                  // call
		"behind a jump":             {"eb 00 90 c3", 2, true, 0},                           // jmp
		"behind a branch":           {"74 00 90 c3", 2, true, 0},                           // je
		"behind a return":           {"c3 90 c3", 1, true, 0},                              // ret
		"inside an instruction":     {"48 89 07 90 c3", 1, false, 0},                       //
		"no instruction before":     {"06 89 07 90 c3", 3, false, 0},                       // 06 is none
		"a store to a loop's head":  {"89 07 90 eb fd", 2, false, addr},                    // a direct jump accesses nothing
		"a jump by memory, a write": {"89 07 90 ff 26", 2, false, addr},                    // jmp *(%rsi)
		"a jump by memory, a read":  {"8b 07 90 ff 26", 2, true, 0},                        //
		"a jump by a register":      {"8b 07 90 ff e6", 2, true, addr},                     // jmp *%rsi
		"in a repetition":           {"90 f3 aa 90 c3", 1, false, addr + 1},                // nop; rep stosb
		"behind a repetition":       {"90 f3 aa 90 c3", 3, false, addr + 1},                //
		"a store, or a repetition":  {"89 07 f3 aa 90 c3", 2, false, 0},                    //
		"a load, or a repetition":   {"8b 07 f3 aa 90 c3", 2, false, addr + 2},             // a load is no write
		"pause is no repetition":    {"89 07 f3 90 c3", 2, false, addr},                    // mov; pause
		"behind a system call":      {"0f 05 90 c3", 2, true, 0},                           // syscall
		"a wide store":              {"48 a3 88 77 66 55 44 33 22 11 90", 10, false, addr}, // movabs %rax,0x1122334455667788
	} {
		at, ok := Accessor(hexBytes(t, c.code), addr, addr+c.next, c.reads)
		if !ok {
			at = 0
		}
		if at != c.at || ok != (c.at != 0) {
			t.Errorf("%s: 0x%x, %v, want 0x%x", name, at, ok, c.at)
		}
	}
}
