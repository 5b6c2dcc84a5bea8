package process

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// What stands in a probed process's memory, and is found there by whoever comes next:
//
//	ring  memfd kprobes:ring, shared: records and counters, nothing else
//	home  memfd kprobes:home, private, rw: the control block, this file's layout
//	heap  memfd kprobes:heap, private, rw: tables that the control block has no room for, in pieces; r: unwind tables
//	code  memfd kprobes:code, private, rx: detours and handlers, one or more pieces near the probed text
//	mail  memfd kprobes:mailbox, shared: threads that wait for a handler (internal/arch/amd64, gate.go)
//	thread  memfd kprobes:thread, shared: what a thread of ours tells the tracer (internal/arch, thread.go)
//
// Modules, and what their handlers use, are heap and code in the first 2 GB.
//
// The mailbox has a version of its own. A tracer that does not know it takes out the rest:
// threads stop waiting by themselves.
//
// The control block:
//
//	0        header
//	4096     the first sites: what was patched, and with what
//	heapOff  tables of faults, small pools
//
// All that does not fit goes to the heap, as it is needed: more sites, in tables each as large as
// all before it, whose addresses the header has; the pools of return probes; larger tables.
//
// A site's entry is written before its patch is, and cleared after the patch is gone,
// so that at every moment the entries tell all that differs from the program's file.
const (
	controlMagic    = 0x454d4f48424f5250 // "PROBHOME" in memory order
	controlVersion  = 3
	controlStubs    = 2 // the version before: trampolines stand in one piece (stubsName)
	controlOneTable = 1 // before that: all sites stand in the control block, one behind the other
	flatTables      = 4 // of sites there, beside the first

	ringName    = "kprobes:ring"
	controlName = procfs.TracerMap
	heapName    = "kprobes:heap"
	codeName    = "kprobes:code"
	mailboxName = "kprobes:mailbox"
	threadName  = "kprobes:thread"

	siteOff     = 4096
	siteSize    = 64
	firstSites  = 1 << 12 // in the control block
	moreTables  = 8       // of sites, in the heap
	maxSites    = firstSites << moreTables
	poolSlots   = 18 // log2
	leastSlots  = 12 // likewise, where memory is short
	poolStep    = 6  // log2 of the bytes of a slot in the shared pool
	heapOff     = siteOff + firstSites*siteSize
	controlSize = 512 << 10
	heapPiece   = 1 << 20 // the least that is mapped at once
)

// Header offsets, 8 bytes each.
const (
	hdrMagic    = 0
	hdrVersion  = 8
	hdrMarker   = 16 // random: tells this installation from any other
	hdrHolder   = 24 // pid of the tracer, in the root namespace's eyes of the tracer
	hdrSince    = 32 // its start time, clock ticks after boot
	hdrRing     = 40 // address of the ring
	hdrRingSize = 48
	hdrSites    = 56 // entries of the site table that were ever used
	hdrFaults   = 64 // address of the fault table, its length in entries
	hdrNFaults  = 72
	hdrTraps    = 80                                           // likewise the table of breakpoints
	hdrWait     = 96                                           // answer and switch of the probe on the loader
	hdrResident = 112                                          // address of the handler of SIGSEGV, before it is installed; nowhere: it must not be yet
	hdrShared   = 128                                          // 32 bits: arch.CodegenEnv.Shared
	hdrHandled  = 132                                          // 32 bits, behind it: arch.CodegenEnv.Handled
	hdrAsks     = 136                                          // arch.CodegenEnv.Asks
	hdrQuiet    = 192                                          // arch.CodegenEnv.Quiet
	hdrReturns  = 208                                          // arch.Trampoline.Mapped
	hdrUnwind   = 216                                          // arch.CodegenEnv.Unwind
	hdrMasks    = 512                                          // arch.Masks.Table
	hdrActions  = 1024                                         // saved dispositions: actionSize each, by signal number
	actionSize  = 40                                           // a word: our handler stands, then struct kernel_sigaction
	hdrHooked   = hdrActions + uint64(unix.SIGTRAP)*actionSize // that word of SIGTRAP
	hdrTables   = 3712                                         // addresses of the tables of sites in the heap, moreTables words
)
