// Package spans makes spans of the hits of probes at the entries and returns of functions.
//
// There are two ways, and both are exact as long as no record is lost.
//
// # Joined: a record at the entry, and one at the return (Joiner)
//
// Hits come in the order of their times. For each goroutine, or thread where there is none, a Joiner keeps the calls in progress, the
// innermost last. An entry makes a call: the innermost one is its parent, so that the ids of a span and of its parent are known before
// either has ended, and nothing waits for anything. A return ends a call and makes it a span.
//
//	            ┌── a return with its depth ──► a span
//	entry ──► open
//	            └── seen to be left ──────────► a span with the status error
//
// A call and its return are told to belong together by the call's depth: where on its stack its return address is. Two calls of one
// stack that are in progress at the same time have not the same depth, and an inner one is deeper. So a call has been left without a
// return, by a panic, an exception or a jump, if
//
//   - a function is entered that is not deeper, on the same stack;
//   - a call returns that is further out;
//   - a Go program's runtime recovers from a panic, and says down to where (Recovered);
//   - its goroutine ends (Ended).
//
// Until one of these is seen the call counts as in progress, and is the parent of what is entered. A call that has ended in a jump to
// another function may have its depth, if its returns are seen by trampoline (Func.Trampoline).
//
// When a goroutine is created (Created) it gets what its creator is in: the innermost call, or what the creator itself was created in.
// That is the parent of its outermost calls, for as long as it lives.
//
// A call that is in none of this program may be in one of another program (Remote): it says so by an argument. Then its trace is that
// call's, and whether that is kept has been decided there.
//
// A call may have a context as an argument that carries a span (Carried), which the program makes by itself. That span is the call's parent,
// and its trace the call's, also of a call that is in others of this program. But if one of these, or what the goroutine was created in, has a context with the
// same span, the innermost such call is the parent: it is in the span, and the call is in it. What a call without a context does is in the call.
//
// # Nested: a record at the return alone (Nester)
//
// Where a filter at the return stops most calls (only slow ones, only errors), a record at each entry would cost what the filter saves.
// So there is none, and a call's record says when it was entered. A call that was entered after another one, and returned before it, on
// the same goroutine or thread, is inside of it. It is held until that other one returns: then that is its parent, if none lies between.
// A call that nothing encloses is held for Options.Wait, and is the first of its trace then. A call that encloses it and takes longer
// than that begins a trace of its own, which is counted as split.
//
// # Bounds
//
// At most maxOpen calls are in progress, held or waiting, over all goroutines and threads. A call beyond that is not followed, and counted
// (Stats.Unfollowed); a Nester sends the one that it has held longest instead. Of as many goroutines it is known what they were created
// in: if there are more their ends were lost, and it is forgotten of all, and counted. When records are lost, calls that were in progress then
// may have returned unseen: if such a call seems to have been left it is no span, and counted as not joined. What the ring has lost is
// asked for when a call seems to have been left (Func.Lost), since who reads the ring tells of it later than of hits.
package spans
