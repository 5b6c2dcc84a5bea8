// Package patch decides what all targets decide alike when code of a running program changes: where each thread goes on,
// which bytes are written, what is tried again, where detours have their room (Piece), and what a killed tracer has left. A
// target stops its threads, asks this package, and writes; the package itself knows no target, takes no lock and reads no
// memory.
//
// # The states of a site
//
// A site (target.Site) goes through these states. Each is one in which the tracer may die and the target lives, and each
// says which code any other thread may be executing.
//
//	state      what is there                       where threads may be
//	written    the detour's code                   anywhere but in the detour: nothing leads there
//	listed     its entry in the control block,     as before; Restore finds the program's own bytes, and leaves them
//	           and its faults in the tables
//	entered    (in a stop)                         in the detour, if they stood at an instruction that the patch will
//	                                               cover (Fate: Moves): the detour is whole, and leads back behind the patch
//	armed      the patch                           in the detour, or outside the region; nobody goes on inside the patch
//	removed    the program's own bytes             in the detour still: its way back is the program's own code again.
//	                                               Where that way leads into a new patch nobody may be in the detour
//	                                               (Fate: Leaves, Blocks)
//	retired    no entry any more                   as before; the detour keeps its room (Retired)
//	free       nothing                             anywhere but in the detour
//
// The steps from one state to the next, in this order for each change:
//
//  1. Detours are written while the program runs.
//  2. All threads stop. Threads says of each where it goes on. One that can neither stay nor be moved blocks the sites
//     that it is in the way of: their groups are left out of the change (target.Change.LeaveOut), the rest is made.
//  3. The entries of new sites are written to the control block.
//  4. The threads are moved, and the bytes written (Edits): what is taken out and what comes within one write where they
//     lie next to each other, so that no write leaves half of a patch. A target that can outlive its tracer moves its
//     threads first; where one goes on inside an old patch (Threads.InOld), the old patches are taken out before.
//     The own process, which cannot, moves them last. If a write fails what was written is put back, the last first.
//  5. The entries of removed sites are cleared. Until then they tell of bytes that are the program's own.
//  6. Detours in which nobody was are freed (Retired), the others at a later change.
//
// A change that a thread blocks is tried again in another stop (Tries).
package patch
