// Package mailmem says how a mailbox lies in memory: what generated code of every processor, which posts, and the
// tracer, which answers, agree on. internal/mailbox has the tracer's side; the gates of a processor have the other,
// and say where in a slot its registers stand.
package mailmem

// Geometry, in bytes from the mailbox's start. The tracer fills in the first page's words before the gate is used.
const (
	Version    = 1
	Magic      = 0x4c49414d424f5250 // "PROBMAIL" in memory order
	MagicOff   = 0
	VersionOff = 8
	PIDOff     = 16  // 32 bits: the process's id, as it sees it itself
	BellOff    = 64  // 32 bits, a futex: counted up with each post
	IdleOff    = 128 // 32 bits: threads of the tracer that wait for the bell
	OffOff     = 192 // 32 bits: no thread waits while it is not On
	SlotsOff   = 4096
	Slots      = 128
	SlotSize   = 1024
	DescsOff   = SlotsOff + Slots*SlotSize
	Descs      = 1 << 20 // at most
	DescSize   = 64
)

// Size is the size of a mailbox with room for so many descriptors.
func Size(descs int) int { return DescsOff + descs*DescSize }

// A descriptor of a handler.
const (
	MissedOff = 0  // 64 bits: hits that nobody answered
	StopOff   = 8  // 64 bits: hits while it was switched off
	DeadOff   = 16 // 32 bits: not 0: it is switched off
)

// Values of the word at OffOff.
const (
	On     = 0
	Muted  = 1 // a thread waited in vain; the tracer sets On again
	Closed = 2 // for good
)

// A slot. The thread's registers follow from RegsOff on, as its processor's gate stores them.
//
// The state is the word that tells whose the slot is. A thread stores what it posts before it moves the state to
// SlotPosted, and the tracer its answer before SlotAnswered: these moves release, and who sees them acquires. An
// atomic exchange or addition of sync/atomic does both; generated code of a CPU that orders less than x86 takes
// instructions that do.
const (
	StateOff    = 0  // 32 bits, a futex
	DescOff     = 8  // of the handler
	InstanceOff = 16 // of a return probe, else 0
	TimeOff     = 24 // struct timespec: when the wait ends
	BlockOff    = 40 // answer: where the frame of arch.ActionLeave is built
	ActionOff   = 48 // answer: 32 bits
	TIDOff      = 56 // 32 bits
	RegsOff     = 64
)

// States of a slot.
const (
	SlotFree = iota
	SlotClaimed
	SlotPosted
	SlotTaken
	SlotAnswered
	SlotAbandoned
	SlotRefused
)
