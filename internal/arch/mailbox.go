package arch

// How a mailbox lies in memory: what generated code of every processor, which posts, and the tracer, which answers, agree
// on. internal/mailbox has the tracer's side; the gates of a processor have the other, and say where in a slot its registers
// stand.

// Geometry, in bytes from the mailbox's start. The tracer fills in the first page's words before the gate is used.
const (
	MailVersion    = 1
	MailMagic      = 0x4c49414d424f5250 // "PROBMAIL" in memory order
	MailMagicOff   = 0
	MailVersionOff = 8
	MailPIDOff     = 16  // 32 bits: the process's id, as it sees it itself
	MailBellOff    = 64  // 32 bits, a futex: counted up with each post
	MailIdleOff    = 128 // 32 bits: threads of the tracer that wait for the bell
	MailOffOff     = 192 // 32 bits: no thread waits while it is not MailOn
	MailSlotsOff   = 4096
	MailSlots      = 128
	MailSlotSize   = 1024
	MailDescsOff   = MailSlotsOff + MailSlots*MailSlotSize
	MailDescs      = 1 << 20 // at most
	MailDescSize   = 64
)

// MailSize is the size of a mailbox with room for so many descriptors.
func MailSize(descs int) int { return MailDescsOff + descs*MailDescSize }

// A descriptor of a handler.
const (
	MailMissedOff = 0  // 64 bits: hits that nobody answered
	MailStopOff   = 8  // 64 bits: hits while it was switched off
	MailDeadOff   = 16 // 32 bits: not 0: it is switched off
)

// Values of the word at MailOffOff.
const (
	MailOn     = 0
	MailMuted  = 1 // a thread waited in vain; the tracer sets MailOn again
	MailClosed = 2 // for good
)

// A slot. The thread's registers follow from MailRegsOff on, as its processor's gate stores them.
//
// The state is the word that tells whose the slot is. A thread stores what it posts before it moves the state to
// MailSlotPosted, and the tracer its answer before MailSlotAnswered: these moves release, and who sees them acquires. An
// atomic exchange or addition of sync/atomic does both; generated code of a CPU that orders less than x86 takes
// instructions that do.
const (
	MailStateOff    = 0  // 32 bits, a futex
	MailDescOff     = 8  // of the handler
	MailInstanceOff = 16 // of a return probe, else 0
	MailTimeOff     = 24 // struct timespec: when the wait ends
	MailBlockOff    = 40 // answer: where the frame of arch.ActionLeave is built
	MailActionOff   = 48 // answer: 32 bits
	MailTIDOff      = 56 // 32 bits
	MailRegsOff     = 64
)

// States of a slot.
const (
	MailSlotFree = iota
	MailSlotClaimed
	MailSlotPosted
	MailSlotTaken
	MailSlotAnswered
	MailSlotAbandoned
	MailSlotRefused
)
