// Package kernel reads a Linux kernel (x86-64) out of a machine's physical memory: where it
// is, its symbols, page tables, modules, types, threads, and the places in its code that
// nobody may patch. Nothing of the machine is needed but its memory: no registers, no
// System.map, no file of the kernel, no help from the guest.
//
// # Lifetime
//
// A [Kernel] belongs to one boot of the guest. [Kernel.Check] tells whether it still stands;
// a reset of the machine is known for sure only to who runs it, since RAM outlives a reset.
// What is parsed once (symbols, types) is kept; everything else is read from live memory at
// each call. A Kernel is safe for concurrent use.
//
// # Trust
//
// The guest may write what it likes into its memory, at any time. Every pointer is taken
// through the page tables, every list and table is bounded, every size checked: bad memory
// gives errors or missing entries, never a panic or an endless loop.
//
// # Kernels
//
// Tested with Debian's kernels 5.10, 6.1, 6.12, 7.2 and 7.3, those of 5.10 and 6.1 with PREEMPT_RT too
// (TestKernels of package guest). The layout of kallsyms of 6.15 is tested on made-up memory only.
package kernel
