package engine

import "slices"

// forget drops events that were not armed, and gives their numbers back.
func (c *Core) forget(evs []*Event) { c.numbers.Cool(c.erase(evs)...) }

// erase drops events that were not armed. Their numbers, which it gives, may serve again once no
// thread can count for them.
func (c *Core) erase(evs []*Event) (ids []int) {
	for _, e := range evs {
		if e == c.loaderProbe {
			c.loaderProbe = nil
		}
		if e == c.atMain {
			c.atMain = nil
		}
		if slices.Contains(c.guards, e) { // they come together, and go together
			c.guards = nil
		}
		e.ended = true
		e.release()
		c.namer(e.Def).Release(e.Name)
		if f := e.fn; f != nil {
			f.drop(e)
			if e.serves() { // its code is in, and another's could not be put in
				if c.pendingRemoval == nil {
					c.pendingRemoval = map[*function]bool{}
				}
				c.pendingRemoval[f] = true
				continue
			}
		}
		e.calls.MarkClear()
		ids = append(ids, c.retire(e)...)
		if e.tail > 0 {
			ids, e.tail = append(ids, e.tail), -1 // once: an addition that fails later drops all again
		}
		if e.left > 0 {
			ids, e.left = append(ids, e.left), 0
		}
	}
	return ids
}
