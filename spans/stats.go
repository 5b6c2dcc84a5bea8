package spans

// Stats says what has become of calls and their spans.
type Stats struct {
	Spans     uint64 // calls that became spans
	Errors    uint64 // of these, with the status error
	Left      uint64 // of these, left without a return
	Active    uint64 // calls in progress
	Unsampled uint64 // calls of traces that Options.Sample does not keep; of those that the target leaves out the number is known after Close
	Hidden    uint64 // calls of this package's own goroutines, in the own process
	// Unjoined are returns whose entry was lost, or did not pass --if, and calls whose return may have been lost.
	Unjoined   uint64
	Unfollowed uint64 // calls for which there was no room, and goroutines of which it was forgotten what they were created in
	Unread     uint64 // calls of whose context it could not be found out whether it carries a span
	Split      uint64 // with Slower and Errors: calls that took longer than Wait after one that they enclose
	Damaged    uint64 // records that could not be read
	Unnamed    uint64 // hits whose thread is not known
	Lost       uint64 // records that found the ring full, of all events of the Core
	Others     uint64 // hits of events of others, of which nobody took notice

	Sent     uint64 // spans that the collector has taken, or that were written
	Rejected uint64 // that it has not taken
	Failed   uint64 // that could not be sent
	Dropped  uint64 // that found the queue full
	Err      error  // why spans failed or were rejected the last time; nil: none did
}

// Stats says what has become of calls until now. It waits for nobody but a reader that JSON keeps waiting.
func (s *Spans) Stats() Stats {
	s.mu.Lock()
	n := s.maker.Stats()
	out := Stats{
		Spans: n.Spans, Errors: n.Errors, Left: n.Left, Active: n.Active, Unsampled: n.Unsampled, Hidden: n.Hidden, Unjoined: n.Unjoined,
		Unfollowed: n.Unfollowed, Unread: n.Unread, Split: n.Split, Damaged: n.Damaged, Unnamed: n.Unnamed, Lost: s.lost, Others: s.others,
	}
	s.mu.Unlock()
	if s.exporter != nil {
		st := s.exporter.Stats()
		out.Sent, out.Rejected, out.Failed, out.Dropped, out.Err = st.Sent, st.Rejected, st.Failed, st.Dropped, st.Err
	}
	return out
}
