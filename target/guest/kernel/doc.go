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
// Tested with 6.1 (Debian's cloud kernel, whose kallsyms has the layout of 6.2). Layouts of
// 6.1, 6.4 and 6.15 kallsyms are tested on made-up memory only; field names of later
// kernels (struct module of 6.4, pcpu_hot of 6.2, per-CPU variables of 6.15) are followed by
// their sources.
package kernel
