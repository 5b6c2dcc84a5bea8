// Package guest makes the Linux kernel of a QEMU guest a target. Nothing in the guest helps
// and nothing there knows: the kernel is found in the guest's memory, which QEMU shares by a
// file, code is placed by an edit of its page tables, and patches are written while its vCPUs
// are stopped.
//
// # Where things lie
//
// Generated code, the ring and the instances of return probes lie in memory that the guest
// never uses: the memory of an ivshmem device if the guest has one, else a run of pages
// below 1 MiB, which Linux reserves since 5.13. Free entries of level2_fixmap_pgt (the page
// directory of the 1 GB behind the kernel's image, shared by all processes; modules are loaded at
// its start) map them:
//
//	level2_fixmap_pgt        guest-virtual                 physical
//	  [k]    ────────────►   code     R-X                  low pages or ivshmem
//	  [k+1]  ────────────►   pools, mailbox  RW-
//	  [k+2…] ────────────►   ring     RW-
//
// The entries were not present before, so no CPU has them cached. They are not global, and
// which ones are taken is left to chance, so that what a CPU still has of an earlier use is
// not met again.
//
// # What a thread may be running while bytes change
//
// All vCPUs are stopped for a change, and those that do not run have saved what they go on
// with on a stack. So for each patch of bytes [a, a+n) these are the states:
//
//	at a, on a vCPU or saved          it will run the new bytes from their start
//	in a+1 … a+n-1, on a vCPU         the change waits: the vCPUs run for a moment
//	in a+1 … a+n-1, saved on a stack  likewise (interrupted there; a call is the last
//	                                  instruction of a region, so none returns into it)
//	in the detour of a site that goes the detour's code stays until nobody is in it;
//	                                  if it goes back into a new patch, the change waits
//	in the gate, for a handler        it is in the detour that it came from, which it has
//	                                  in a register
//
// Every word of every kernel stack above its stack pointer is looked at; one that looks like
// such an address counts as one. Nothing is moved and nothing is guessed.
//
// The control area's table of sites has an entry before its patch is written, and until after
// it is gone, so that whoever comes after a tracer that was killed can restore every byte.
//
// # Handlers
//
// A vCPU that hits a probe with a handler posts its registers to a mailbox in the data part and
// spins in the gate (amd64.NewKernelGate) until a goroutine here, which looks for posts, has run
// the handler (internal/mailbox). The wait is bounded by the time-stamp counter, so that a tracer that
// dies does not take the guest with it. See docs/HANDLERS.md.
package guest
