// Package toggle holds what tests of probes that come and go have in common: what such a
// probe may have counted, and what has changed in the code that it stands in.
package toggle

import "fmt"

// Calls are numbers of calls, by the name of the function.
type Calls map[string]uint64

// Window is a time in which a probe is armed: calls that have begun, or ended, when the arming
// begins, when the probe is armed, just before it is disarmed, and when that is done.
type Window struct {
	EndedBefore, BegunArmed, EndedArmed, BegunAfter Calls
}

// Check tells what is wrong with the hits that a probe in the function fn has counted in the
// window: it counts each call that begins and ends while it is armed, and none that does not
// touch the window. Its instruction runs once in each call.
func (w *Window) Check(fn string, hits uint64) error {
	lo, hi := w.EndedArmed[fn], w.BegunAfter[fn]-w.EndedBefore[fn]
	lo -= min(lo, w.BegunArmed[fn])
	if hits < lo || hits > hi {
		return fmt.Errorf("%d hits, at least %d and at most %d calls were in its time", hits, lo, hi)
	}
	return nil
}

// patch is the length of the longest patch, a jump.
const patch = 5

// Patches tells in how many places code differs, the same bytes read before and after
// a change, if each place is a patch of at most five bytes. It may be fewer than were
// changed, where patches follow one another, and is never more.
func Patches(before, after []byte) (n int) {
	for i := 0; i < min(len(before), len(after)); i++ {
		if before[i] != after[i] {
			n++
			i += patch - 1
		}
	}
	return n
}
