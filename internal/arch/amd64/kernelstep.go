package amd64

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// KernelRuns says why the kernel's uprobes must not stand on an instruction, nil if they may;
// code starts with it. What a kernel does not know at all it refuses itself. But Linux 6.18
//   - looks at the opcode byte of VEX and EVEX alone to find branches that it emulates
//     (arch/x86/kernel/uprobes.c, branch_setup_ops), so that vmovdqa to memory (7F) is taken for
//     jg, vpor (EB) for jmp, vzeroupper (77) for ja: they are not run;
//   - steps pushf and syscall with the trap flag set, which the program then sees on its stack
//     and in r11.
//
// The error answers errors.Is(err, unix.EOPNOTSUPP).
func KernelRuns(code []byte) error {
	in, err := Decode(code)
	if err != nil {
		return err
	}
	code = code[:in.Len]
	switch {
	case in.Enc == EncXOP, (in.Enc == EncVEX || in.Enc == EncEVEX) && likeBranch(in.Opcode):
		return errno.Errorf(unix.EOPNOTSUPP, "% x: the kernel takes this vector instruction for another one and would not run it", code)
	case in.storesFlags():
		return errno.Errorf(unix.EOPNOTSUPP, "% x: stepped by the kernel, this instruction would show the program a trap flag", code)
	}
	return nil
}

// likeBranch says whether an opcode is one of call, jmp or jcc in the one-byte map.
func likeBranch(op byte) bool {
	switch op {
	case 0xe8, 0xe9, 0xeb:
		return true
	}
	return op&0xf0 == 0x70
}
