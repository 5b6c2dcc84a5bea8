package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// What generated code and those who look at code need to know.
const (
	Breakpoint = amd64.Breakpoint // what kernel uprobes and debuggers write, and what fills gaps between code
	Reach      = amd64.Reach      // bytes from a jump to where it may lead, less a page
	LandingLen = amd64.LandingLen // bytes of a landing instruction

	BreakpointName = "int3"
)

// KernelPatch says how many bytes a uprobe of the kernel may have changed; 0: it is not the kernel's doing. called
// says whether a distance from the end of a call leads to the kernel's trampoline.
func KernelPatch(have, want []byte, called func(behind int, rel int32) bool) int {
	return amd64.KernelPatch(have, want, called)
}
