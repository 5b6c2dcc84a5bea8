package amd64

import (
	"errors"
	"fmt"
	"math"
)

// ErrImmovable is a cause of a refusal, beside ErrReach, and wrapped by a *RelocError:
// the instruction can run nowhere but where it stands. Probe another one, or step it.
var ErrImmovable = errors.New("instruction can not be moved")

// RelocError says which instruction is not moved and why.
type RelocError struct {
	Code   []byte // the instruction
	Rule   error  // ErrReach or ErrImmovable
	Reason string // what is against it
}

func (e *RelocError) Error() string {
	return fmt.Sprintf("%v: % x: %s", e.Rule, e.Code, e.Reason)
}

// Unwrap gives the rule.
func (e *RelocError) Unwrap() error { return e.Rule }

// Relocatable says whether an instruction can be moved at all, near enough: the error
// is a *RelocError with ErrImmovable. code starts with the instruction.
func Relocatable(in *Inst, code []byte) error {
	return relocatable(in, code, &defaultReloc)
}

func relocatable(in *Inst, code []byte, opt *RelocOptions) error {
	if !in.fits(code) {
		return &RelocError{code, ErrImmovable, "the decoded instruction does not fit its bytes"}
	}
	reason := immovable(in, code, opt)
	if reason == "" {
		return nil
	}
	return &RelocError{code[:in.Len], ErrImmovable, reason}
}

// fits says whether every field of in that is used here lies in code.
func (in *Inst) fits(code []byte) bool {
	n := int(in.Len)
	return n >= 1 && n <= MaxLen && n <= len(code) &&
		int(in.RelOff)+int(in.RelLen) <= n &&
		int(in.DispOff)+int(in.DispLen) <= n &&
		int(in.OpOff) < n &&
		(!in.HasModRM || int(in.ModRMOff) < n) &&
		(!in.HasSIB || int(in.ModRMOff)+1 < n) &&
		(!in.RIPMem || in.RelLen == 4)
}

// kindReasons are what is against moving a whole kind.
var kindReasons = [...]string{
	KindFar:  "far transfers may leave 64-bit mode",
	KindInt:  "a software interrupt shows the kernel where it stands",
	KindInt3: "a breakpoint belongs to whoever waits for it at its address",
	KindHlt:  "a privileged instruction never runs here",
}

// immovable gives the reason against moving an instruction, "" if there is none.
func immovable(in *Inst, code []byte, opt *RelocOptions) string {
	if r := kindReasons[in.Kind]; r != "" {
		return r
	}
	switch {
	case in.Kind == KindUndef && !opt.AllowUndef:
		return "it marks code that is never reached"
	case in.Kind == KindSyscall && in.Opcode != 0x05:
		return "only syscall enters a 64-bit kernel"
	case in.RelLen == 2:
		return "a displacement of two bytes cuts the instruction pointer on some processors"
	case in.Kind == KindPlain:
		return ""
	case in.Prefix&PrefixLock != 0:
		return "a locked branch is undefined"
	case in.Enc == EncREX2 && in.Map == MapOne && in.Opcode == 0xa1:
		return "jmpabs is not supported"
	case in.Prefix&PrefixOpSize != 0 && !in.W() && shortBranch(in.Kind):
		return "an operand-size prefix cuts the instruction pointer on some processors"
	case in.Kind == KindCallInd && !opt.RealCalls:
		return immovableCall(in, code)
	}
	return ""
}

// shortBranch: an operand-size prefix makes these 16 bits wide on AMD's processors
// (APM vol. 3, section 1.2.2) and nothing else on Intel's (SDM vol. 2A, CALL).
func shortBranch(k Kind) bool {
	switch k {
	case KindJmp, KindJcc, KindLoop, KindCall, KindCallInd:
		return true
	}
	return false
}

// immovableCall finds indirect calls whose operand the emulated push would change.
func immovableCall(in *Inst, code []byte) string {
	if !in.HasMem() {
		if in.RM() == byte(RSP) && in.Ext&1 == 0 {
			return "the call's target is the stack pointer, which the push changes"
		}
		return ""
	}
	if !in.baseIsRSP() {
		return ""
	}
	switch disp := in.disp(code); {
	case disp > math.MaxInt32-8:
		return "the operand's displacement can not grow by the size of the pushed address"
	case in.SIB>>3&7 == 4 && in.Rex&2 == 0 && in.Ext&2 == 0 && disp > -16 && disp < 0:
		return "the call reads the place that it pushes to"
	}
	return ""
}
