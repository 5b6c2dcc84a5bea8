package guest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// UnlessEnded is what Attach makes of an error.
var UnlessEnded = unlessEnded

// AttachUnheard attaches to the kernel of a machine whose events nobody tells the target.
func AttachUnheard(m *qemu.Machine) (*Target, error) {
	k, err := findRunning(m)
	if err != nil {
		return nil, err
	}
	return attach(m, k, nil)
}

// PickFree has layouts stand at the nth place that is free, for the length of a test.
func PickFree(t testing.TB, n int) {
	pickFree = func(int) int { return n }
	t.Cleanup(func() { pickFree = rand.IntN })
}

// Parts are the addresses of the layout's data, which begins with the mailbox if there is no pool, and of its ring.
func (t *Target) Parts() (data, ring uint64) { return t.lay.data.va, t.lay.ring.va }

// ModuleMemory is how much memory modules have.
func (t *Target) ModuleMemory() (text, data uint64) {
	return t.inLine.text.Used(), t.inLine.data.Used()
}

// Swap exchanges, in the kernel's page tables, two large pages of the ring by their numbers, and gives what they hold. The
// layout must be of an ivshmem device.
func (t *Target) Swap(i, j int) (a, b []byte) {
	l := t.lay
	first := (len(l.code.mem) + len(l.data.mem)) / largePage
	entries := l.entries()
	l.setSlot(first+i, entries[first+j])
	l.setSlot(first+j, entries[first+i])
	return l.ring.mem[i*largePage:][:largePage], l.ring.mem[j*largePage:][:largePage]
}

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
	return le.Uint32(l.lay.data.mem[l.control.get(hdrMail)-1+arch.MailOffOff:])
}

// Plant takes a slot of the pool that return probes share, as a call whose return address ret stands at
// sp would; the slot tells of event, which the entry writes down behind the key, by that of claimed. taken
// says whether the slot is taken still.
func (t *Target) Plant(event, claimed int, sp, ret uint64) (taken func() bool, free func()) {
	table := t.table(t.pools[0])
	for at := 0; ; at += 1 << t.pools[0].Stride {
		slot := table[at : at+amd64.SlotHeader]
		if le.Uint64(slot) != 0 {
			continue
		}
		amd64.SetEvent(slot, event)
		le.PutUint64(slot[amd64.SlotHeader-8:], ret)
		storeWord(slot, sp^amd64.EventSalt(claimed))
		return func() bool { return le.Uint64(slot) != 0 }, func() { storeWord(slot, 0) }
	}
}
