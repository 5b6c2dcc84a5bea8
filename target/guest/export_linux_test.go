package guest

import "kprobes.dev/kprobes/arch/amd64"

// Memory is the kernel's memory as handlers have it.
func (t *Target) Memory() amd64.Memory { return &kernelMemory{t, t.lay.data} }

// MailOff is what the mailbox says to vCPUs that would wait.
func (l *Leftover) MailOff() uint32 {
	return le.Uint32(l.lay.data.mem[l.control.get(hdrMail)-1+amd64.MailOffOff:])
}
