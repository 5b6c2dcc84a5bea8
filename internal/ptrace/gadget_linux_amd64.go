package ptrace

import "kprobes.dev/kprobes/internal/interval"

// gadgets are the instructions of the program that a frame needs. All are addresses, 0 if
// there is none.
type gadgets struct {
	syscallRet uint64 // syscall; ret
	sigreturn  uint64 // mov $15, %eax (or %rax); syscall
	popRAX     uint64 // pop %rax; ret
}

// chain is the words that lead from the return of the call into rt_sigreturn. The stack
// pointer must then be at the ucontext.
func (g gadgets) chain() []uint64 {
	if g.sigreturn != 0 {
		return []uint64{g.sigreturn}
	}
	return []uint64{g.popRAX, sysRtSigreturn, g.syscallRet}
}

// callSite is where a system call is made; a thread stands syscallSize bytes behind that when the call ends.
func (g gadgets) callSite(nr uint64) uint64 {
	if nr == sysRtSigreturn && g.sigreturn != 0 {
		return g.sigreturn + uint64(len(sigreturnCode[0])-syscallSize)
	}
	return g.syscallRet
}

// ranges is where the instructions lie, but for stubs.
func (g gadgets) ranges() (rs []interval.Range) {
	if a := g.syscallRet; a != 0 {
		rs = append(rs, interval.Range{Start: a, End: a + uint64(len(syscallRetCode))})
	}
	if a := g.popRAX; a != 0 {
		rs = append(rs, interval.Range{Start: a, End: a + uint64(len(popRAXCode))})
	}
	return rs
}

// search looks in code that stands at an address for what is missing.
func (g *gadgets) search(at uint64, b []byte) {
	first(&g.syscallRet, at, b, syscallRetCode)
	first(&g.popRAX, at, b, popRAXCode)
}

func (g gadgets) complete() bool {
	return g.syscallRet != 0 && (g.sigreturn != 0 || g.popRAX != 0)
}

var (
	syscallRetCode = []byte{0x0f, 0x05, 0xc3}
	popRAXCode     = []byte{0x58, 0xc3}
	sigreturnCode  = [][]byte{
		{0x48, 0xc7, 0xc0, sysRtSigreturn, 0, 0, 0, 0x0f, 0x05}, // mov $15, %rax; syscall: glibc, musl, Go
		{0xb8, sysRtSigreturn, 0, 0, 0, 0x0f, 0x05},             // mov $15, %eax; syscall
	}
)

// stillThere says whether the code that was found can be used as it is.
func (p *Process) stillThere(g *gadgetSet) bool {
	if !g.complete() || !p.holds(g.syscallRet, syscallRetCode) {
		return false
	}
	if g.sigreturn != 0 {
		return p.holds(g.sigreturn, sigreturnCode[0]) || p.holds(g.sigreturn, sigreturnCode[1])
	}
	return p.holds(g.popRAX, popRAXCode)
}
