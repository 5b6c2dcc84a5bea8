package amd64

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// What the kernel's uprobes do not run as it is, as internal/testprog's program boundary shows
// on Linux 6.18.
func TestKernelRuns(t *testing.T) {
	for _, c := range []struct {
		text string
		code []byte
		runs bool
	}{
		{"vzeroupper", []byte{0xc5, 0xf8, 0x77}, false},
		{"vmovdqa %ymm1, 64(%rdi)", []byte{0xc5, 0xfd, 0x7f, 0x4f, 0x40}, false},
		{"vpor %ymm1, %ymm2, %ymm3", []byte{0xc5, 0xed, 0xeb, 0xd9}, false},
		{"vpsubsb %ymm1, %ymm2, %ymm3", []byte{0xc5, 0xed, 0xe8, 0xd9}, false},
		{"vpsubsw %ymm1, %ymm2, %ymm3", []byte{0xc5, 0xed, 0xe9, 0xd9}, false},
		{"vporq %zmm1, %zmm2, %zmm3", []byte{0x62, 0xf1, 0xed, 0x48, 0xeb, 0xd9}, false},
		{"vpcmov %xmm1, %xmm2, %xmm3, %xmm4", []byte{0x8f, 0xe8, 0x60, 0xa2, 0xe2, 0x10}, false},
		{"pushfq", []byte{0x9c}, false},
		{"syscall", []byte{0x0f, 0x05}, false},
		{"popfq", []byte{0x9d}, true},
		{"jg .+9", []byte{0x7f, 0x07}, true},
		{"jmp .+9", []byte{0xeb, 0x07}, true},
		{"call .+5", []byte{0xe8, 0, 0, 0, 0}, true},
		{"pshufd $7, %xmm1, %xmm2", []byte{0x66, 0x0f, 0x70, 0xd1, 0x07}, true},
		{"vaddps %ymm1, %ymm2, %ymm3", []byte{0xc5, 0xec, 0x58, 0xd9}, true},
		{"kmovq %k1, %rax", []byte{0xc4, 0xe1, 0xfb, 0x93, 0xc1}, true},
	} {
		err := KernelRuns(append(c.code, 0x90, 0x90))
		if (err == nil) != c.runs || err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	if KernelRuns(nil) == nil {
		t.Error("no code at all is run")
	}
}
