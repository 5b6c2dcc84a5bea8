package guest

import (
	"slices"

	"kprobes.dev/kprobes/arch/amd64"
)

// UnlessEnded is what Attach makes of an error.
var UnlessEnded = unlessEnded

// Memory is the kernel's memory as handlers have it.
func (t *Target) Memory() amd64.Memory { return t.memory() }

// Callers is what a handler is told of a stack.
func (t *Target) Callers(sp uint64, ret int, pcs []uint64) int {
	return t.memory().callers(sp, ret, pcs)
}

// Taken is what the layout has of the guest's memory and a change writes to.
func (t *Target) Taken() []byte { return slices.Concat(t.lay.control.mem, t.lay.code.mem) }

// MailOff is what the mailbox says to vCPUs that would wait.
func (l *Leftover) MailOff() uint32 {
	return le.Uint32(l.lay.data.mem[l.control.get(hdrMail)-1+amd64.MailOffOff:])
}
