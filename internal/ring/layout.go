// Package ring is the shared-memory ring between the generated code in a probed
// process, which writes records, and the tracer, which reads them.
package ring

// The ring is one memfd, mapped shared by writer and reader:
//
//	0                 header, one page (see Header offsets)
//	ShardOff(i)       shard i: control page(s), counters, data, slack
//
// There are two shards per possible CPU: shard cpu is written inside a restartable
// sequence (rseq), shard NCPU+cpu with locked instructions by threads that have none.
// A ring with FlagLockedOnly has the latter alone, shard cpu being the CPU's.
// The protocols are described in protocol.go and model-checked in model/.
const (
	// Magic is the header's first word, Version that of this layout.
	Magic   = 0x474e495250424f4b // "KOBPRING" in memory order
	Version = 3
	// VersionFlags is the version of a ring with flags: programs that know only Version
	// refuse it.
	VersionFlags = 4
	// FlagLockedOnly says that there are no rseq shards.
	FlagLockedOnly = 1

	PageSize = 4096

	// Header fields, offsets from the start of the mapping, u64 each.
	HdrMagic   = 0
	HdrVersion = 8
	HdrNCPU    = 16 // possible CPUs
	HdrEvents  = 24 // capacity of the counter tables, in events
	HdrData    = 32 // bytes of data in a shard, a power of two
	HdrStride  = 40 // bytes from one shard to the next, a power of two
	HdrFlags   = 48 // VersionFlags: FlagLockedOnly or 0; zero in a ring of Version

	// Shard fields, offsets from the start of the shard, u64 each, a cache line
	// apart.
	//
	// Positions count units of 8 bytes and never wrap.
	//
	// rseq shards: ShHead is the position published: everything below it is whole.
	// locked shards: ShHead is count<<48 | position reserved (48 bits); count is the
	// number of reservations modulo 65536 (a carry out of the position, once in 2^48
	// units, goes into it and is known to the reader). A record is whole once its
	// first word is not zero.
	ShHead = 0
	ShTail = 64  // position up to which the reader has read (and, locked: zeroed); 64 bits (rseq) or 48 (locked). Written by the reader alone
	ShRead = 128 // locked: the reader's own account in the form of ShHead, for the reader that comes after it. Writers never look
	// ShGuard, in locked shards, is a table of 64 words with which code in a kernel
	// notices that it was called by its own doing (internal/arch/amd64). Neither protocol looks at it.
	ShGuard = 1024
	// ShCounters is the offset of the counters: Counters of CounterSize bytes per event.
	ShCounters = PageSize

	CounterSize = 32
	CtrHits     = 0  // runs of a probe whose program only counts
	CtrLost     = 8  // records dropped because the shard was full
	CtrFiltered = 8  // the same counter of a probe that counts what passes its filter: it has no records, and these are the runs that did not pass
	CtrMissed   = 16 // entries of a return probe with no free instance
	CtrUnwound  = 24 // instances found abandoned (their frame was left by unwinding)
	// CtrUnsampled is the same counter of a probe that decides at the entry of a function whether the call's trace is kept: of these
	// calls it is not. Such a probe has no instances.
	CtrUnsampled = 24
	// Slack follows the data: a record that starts in the data may run over its end.
	// Its place is data + pos%HdrData, contiguous, always.
	Slack = 32 << 10

	// Record: header of two words, then the arguments.
	//
	//	w0  size in 8-byte units (bits 0-11), event (12-31), thread id (32-63)
	//	w1  time stamp counter
	//	[w2 goroutine id]        events of Go programs (EventGo)
	//	[w2..w4 kernel]          hits in a kernel (internal/arch/amd64, KernelRecord): preemption
	//	                         count and flags, name of the task
	//	[w  return address]      return probes: where the function returns to
	//	arguments, fixed part; strings
	RecHeader = 16
	MaxRecord = Slack - unit

	// EventShift is where the event's number begins in a record's first word.
	EventShift = 12
)

// Word0 is the half of a record's first word that is known before it is written: its size in units of
// 8 bytes and its event.
func Word0(units, event int) uint32 { return uint32(units) | uint32(event)<<EventShift }

// UnitsOf is a record's size in units of 8 bytes, as its first word says.
func UnitsOf(w0 uint64) uint64 { return w0 & (1<<EventShift - 1) }

// EventOf is the number of a record's event, as its first word says. It may be beyond the ring's Events.
func EventOf(w0 uint64) int { return int(uint32(w0) >> EventShift) }

// Bounds of a Config.
const (
	MaxCPUs   = 8192
	MaxEvents = 1 << 20 // an event number has 20 bits (Word0)
	MinData   = PageSize
	MaxData   = 256 << 20

	DefaultEvents = 4096
	DefaultData   = 1 << 20

	// lockedBytes bounds what a locked shard holds unread. With records of at least
	// RecHeader bytes that is at most 65536 reservations, so that the 16-bit count
	// in the head tells how many lie between two positions.
	lockedBytes = 1 << 20

	unit    = 8 // bytes
	posBits = 48
	posMask = 1<<posBits - 1
)
