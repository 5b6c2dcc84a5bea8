package amd64

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// stackFunctions are functions whose names say what they take: f_N some bytes more than N, v_… what varies.
const stackFunctions = `
void use(char *);
void f_0(void) { use(0); }
void f_4000(void) { char b[4000]; use(b); }
void f_8000(void) { char b[8000]; use(b); }
void f_8190(void) { char b[8190]; use(b); }
void f_9000(void) { char b[9000]; use(b); }
void f_12200(void) { char b[12200]; use(b); }
void f_100(void) { char b[100] __attribute__((aligned(64))); use(b); }
int f_300(int n) { char b[300]; use(b); return n ? f_300(n - 1) + b[0] : 0; }
void v_array(int n) { char b[n]; use(b); }
void v_alloca(int n) { use(__builtin_alloca(n)); }
void h_large(void) { char b[100000]; use(b); }
`

// TestStackOf reads what functions take of their stack that compilers have made with many flags.
func TestStackOf(t *testing.T) {
	dir := t.TempDir()
	source, object := filepath.Join(dir, "f.c"), filepath.Join(dir, "f.o")
	if err := os.WriteFile(source, []byte(stackFunctions), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cc := range []string{"gcc", "clang"} {
		for _, flags := range [][]string{{"-O2"}, {"-O0"}, {"-O3", "-fno-omit-frame-pointer"}, {"-O2", "-fstack-clash-protection"}, {"-O1", "-fstack-clash-protection", "-fstack-protector-strong", "-fcf-protection"}} {
			args := append([]string{"-c", "-o", object, "-fno-inline", source}, flags...)
			if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v (install gcc and clang)\n%s", cc, err, out)
			}
			f, err := elf.Open(object)
			if err != nil {
				t.Fatal(err)
			}
			syms, err := f.Symbols()
			if err != nil {
				t.Fatal(err)
			}
			text, err := f.Section(".text").Data()
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			seen := 0
			for _, s := range syms {
				if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
					continue
				}
				seen++
				u := StackOf(text[s.Value : s.Value+s.Size])
				var least int64
				for _, c := range s.Name[2:] {
					least = 10*least + int64(c-'0')
				}
				switch {
				case s.Name == "h_large" && (u.Varies || u.Bytes >= 100000):
				case s.Name[0] == 'v' && u.Varies:
				case s.Name[0] == 'f' && !u.Varies && u.Bytes >= least && u.Bytes < least+700:
				default:
					t.Errorf("%s %q: %s takes %+v", cc, flags, s.Name, u)
				}
			}
			if seen != 11 {
				t.Errorf("%s %q: %d functions", cc, flags, seen)
			}
		}
	}
}

// TestUsesGS finds accesses by the GS base, and no others.
func TestUsesGS(t *testing.T) {
	for code, want := range map[string]int{
		"90 65488b042528000000":        1,  // nop; mov %gs:0x28,%rax
		"64488b042528000000 c3":        -1, // mov %fs:0x28,%rax; ret
		"3effe0":                       -1, // notrack jmp *%rax
		"6590 90":                      -1, // a prefix without memory
		"4889c8 654803042500000000 c3": 3,  // mov %rcx,%rax; add %gs:0,%rax; ret
	} {
		if got := UsesGS(hexBytes(t, code)); got != want {
			t.Errorf("%s: %d, not %d", code, got, want)
		}
	}
}
