package ring

// # The protocols
//
// Writers are generated code. They never wait and never call the system; a signal
// handler that hits a probe may interrupt them at any instruction, and SIGKILL may end
// them at any instruction. The ring may be mapped by several processes (fork). There is
// one reader at a time. Positions and sizes are in units of 8 bytes; a record of n units
// at position p has its words at data + p%Units … +n-1, contiguous, the last ones in the
// slack if it must be. model/rseq.pml and model/locked.pml are these steps, checked by
// spin, with the writers' store buffers: once with those of x86, which drain in order, and once (WEAK) with
// such as drain in any order. model_test.go also checks that spin finds the mistakes named there.
//
// # The order of loads and stores
//
// Steps are done, and seen by others, in the order of their numbers as far as this table says. On x86 it costs
// nothing (SDM vol. 3, 10.2: stores are seen in program order, loads are done in program order, a store is not
// done before an earlier load; a load may overtake an earlier store). Generated code of a CPU that orders less
// takes the instruction in brackets, here those of arm64. The reader is Go, whose sync/atomic loads and stores
// do more than is asked. What is not in the table needs no order: R4, L4, C2, D3 and D4 are plain.
//
//	step          is                           so that                              without it
//	R5, L5        a store that releases (STLR) whoever sees the record sees all     R5_PLAIN
//	                                           words of it                          L5_PLAIN
//	C1, D2        a load that acquires (LDAR)  C2 and D3 load what was stored       C1_PLAIN
//	                                           before the head, or word 0           D2_PLAIN
//	C4, D5        a store that releases        C2 and D3 have loaded, and D4 has    TAIL_EARLY
//	                                           stored, before space is given away   D5_PLAIN
//	R2, L1: tail  a load that acquires         R4, L4 and L5 store after C4 or D5   R2_PLAIN
//	              (LDAR, or LDAPR)
//	L3            an atomic exchange that      the same for a head that the reader
//	              acquires (CASA, or LDAXR     has replaced (Holes)
//	              and STXR)
//	L             an atomic addition (STADD)   losses are counted one by one
//
// The last column is the mistake that the models make of it. Three things need no more than that:
//
//   - L3 need not release: whoever sees the new head early sees a word 0 that is zero, and whoever sees words of
//     the record before the head does not look at them.
//   - R1 loads what a thread of the same CPU has stored. The kernel orders the accesses of threads that follow
//     each other on a CPU, and a signal handler is ordered with the thread that it interrupts.
//   - H2: a thread that the caller has seen outside, in a stop, has done all its stores.
//
// The time (R3, L4) is read in its step on a CPU whose counter is ordered with loads; on others, x86 among them,
// it may be read some instructions earlier. Then times of one shard may go back a little, and the reader sorts.
//
// # rseq shards
//
// Writer, on CPU c, shard c. R1 to R5 are one restartable sequence: if the thread is
// preempted, migrated, or gets a signal before R5 (or L) is done, it begins again at R1
// (or L).
// So of all threads of all processes only one at a time is between R1 and R5 for a shard,
// and whoever was there before has either done R5 or left nothing that counts.
//
//	R1  h = head
//	R2  if h + n - tail > Units: go to L
//	R3  w1 = the time stamp counter (inside, so times in a shard never go back)
//	R4  store all n words at h, in any order
//	R5  head = h + n                      one store, the commit instruction
//	L   leave the section; lost[event]++  one locked instruction, or the commit
//	                                      instruction of a section of its own (a section
//	                                      has one); in one shard always the same of the two
//
//	after  others see
//	R1-R3  nothing
//	R4     bytes beyond head, which nobody looks at; the next writer overwrites them
//	R5     the record, whole: its words were stored before
//	L      the loss
//
// Arguments that may fault are fetched before R1, since a fault inside is reported at
// the abort address. A writer killed between R1 and R5 leaves nothing. A counter-only
// probe is one restartable increment of hits[event].
//
// Reader:
//
//	C1  h = head; if h - t > Units (t: the reader's own tail): corrupt, go to C5
//	C2  copy the bytes from t to h, then check the copy record by record
//	C3  what cannot be a record: corrupt; it and all behind it up to h is skipped
//	C4  tail = t = end of what was copied
//	C5  (corrupt) tail = t = h: the writers go on from there
//
// After C4 writers may overwrite what was copied, and nothing else. Skipping is safe at
// any time, for nothing below head is being written.
//
// # Locked shards
//
// Writer, any thread, preferably in shard CPUs+cpu of the CPU that it ran on a
// moment ago:
//
//	L1  t = tail, then h = head
//	L2  if (h + n - t) mod 2^48 > LockedUnits: lock lost[event]++, done
//	L3  lock cmpxchg head: h → h + n + 2^48; if it was not h any more: L1
//	L4  store words 1 to n-1 at h; the time stamp counter is read before L1 or here
//	L5  word 0 = size, event, thread: the commit
//
// L2 in machine code needs no mask: t in a register, sub, add, shl 16, shr 16, cmp. Done
// modulo 2^48 it stays right when the position comes round after 2^48 units.
//
//	after  others see
//	L3     n units reserved whose word 0 is zero: the reader stops here
//	L4     the same
//	L5     the record, whole: its words were stored before
//
// In L1 tail is loaded first: then t is at most too small, by what the reader freed in
// between, and L2 errs to the safe side, and only in a shard that is nearly full. The
// other way round is as safe, but a thread preempted between the two loads could find a
// tail beyond its head and count a loss in an empty shard.
//
// A handler that interrupts the writer after L3 reserves behind it and commits first. The
// reader waits at the outer record; no one waits for the reader.
//
// Reader, with its own account a (the same form as head: count and position):
//
//	D1  h = head; (h - a) mod 2^48 > LockedUnits, or 0 with h != a: corrupt, stalled
//	D2  w = word 0 at a; zero: stop (a hole). It cannot be a record: corrupt, stalled
//	D3  copy the n units; put w in the copy's word 0
//	D4  store zero in the n units, slack included; a += n + 2^48; on with D2 until a = h
//	D5  read = a; tail = position of a
//
// Everything from head round to tail is zero at all times, which is what makes D2 right:
// D4 comes before D5, and a writer gets the space only after it has seen D5.
//
// # Holes
//
// A writer killed between L3 and L5 leaves a hole. Its size is unknown, so nothing
// behind it can be told apart, and the space may not be given away while its owner might
// still write to it: a thread can be preempted or stopped for any time. Hence the shard
// stalls (Stalls), fills up, and its writers count what they drop, until a caller that
// can look at the threads vouches for them:
//
//	H1  m = heads of all locked shards (Mark)
//	H2  the caller makes sure that every thread which can still run has been outside of
//	    the generated code at some moment after H1; threads that have ended have been
//	H3  for every shard stalled before m: what is whole before the hole is read as usual;
//	    then all units from the hole to m are zeroed, a = m, read and tail follow
//
// A thread outside of the generated code holds no reservation, and reservations that it
// makes later lie behind m. So after H2 no one will ever write below m in these shards,
// and H3 cannot destroy or tear a record that is alive. Committed records between hole
// and m are given up with it. This holds while other processes, fork children of the
// dead one among them, go on writing.
//
// The same rule ends a corrupt stall. If the head itself is impossible, H3 zeroes the
// shard and exchanges the head for a new one, only if it is still m's: so no reservation
// has been made since m.
//
// # Why the count is exact
//
// Head and account grow by the same additions, one per reservation: n + 2^48. The
// difference m - a is therefore N * 2^48 + units for N reservations, and since a position
// difference is below 2^48 there is no carry in it, even where head itself has carried.
// The top 16 bits give N modulo 65536. Every record has at least 2 units and a shard holds
// at most LockedUnits = 131072 units unread, so 1 <= N <= 65536 where units is not 0, and N
// is known. Each of these N reservations is one attempt that was neither read nor counted
// in lost[event], and it is added to Stats.Dead. Thus
//
//	attempts that passed L3 or L2's lock = read + lost + dead
//
// and an attempt that SIGKILL ended before never happened, which is what its owner, who
// cannot tell either, would have to say.
//
// # What the reader believes
//
// Nothing. The shared tail is compared with its own and restored; the header is not read
// again after Open; every size and event number is checked in the copy against bounds
// that the caller gave; times only order records, and one from the future is taken as of
// now. What a target scribbles can make the reader report records that never were, of
// sizes their event can have, and miss others; it cannot make it crash, hang, or read
// outside of the shard.
