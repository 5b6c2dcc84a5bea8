package target

// Notes sorts out what a PendingLister has to do: all is what is noted then, fresh what is to be written of it, over what
// is to be dropped. What stays is the old Site, and not touched, since a listing may read the memory meanwhile.
func Notes(old, waiting []*Site) (all, fresh, over []*Site) {
	type key struct {
		addr   uint64
		point  Point
		reason Reason
		name   string
	}
	keyOf := func(s *Site) key { return key{s.Addr, s.Points[0], s.Reason, s.Name} }
	had := map[key][]*Site{}
	for _, n := range old {
		had[keyOf(n)] = append(had[keyOf(n)], n)
	}
	for _, w := range waiting {
		if k := keyOf(w); len(had[k]) > 0 {
			all, had[k] = append(all, had[k][0]), had[k][1:]
			continue
		}
		fresh = append(fresh, w)
	}
	for _, sites := range had {
		over = append(over, sites...)
	}
	return append(all, fresh...), fresh, over
}
