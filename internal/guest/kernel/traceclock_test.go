package kernel

import "testing"

// TestTickStamps: stamps of two ticks do not move the clock; what two ticks agree about does, and so does drift.
func TestTickStamps(t *testing.T) {
	const tick = 4_000_000
	var s tickStamps
	for i, c := range []struct{ raw, gtod, lead uint64 }{
		{1 * tick, 100 + 1*tick, 100},
		{1 * tick, 100 + 2*tick, 100}, // the raw clock of this tick is still to come
		{1 * tick, 100 + 2*tick, 100},
		{2 * tick, 100 + 2*tick, 100},
		{2 * tick, 100 + 3*tick, 100},
		{3 * tick, 90 + 3*tick, 90}, // drift
		{5 * tick, 90 + 6*tick, 90},
		{6 * tick, 95 + 6*tick, 95},
		{7 * tick, 95 + 9*tick, 95}, // it has leapt, or so it seems
		{8 * tick, 99 + 10*tick, 99 + 2*tick},
		{9 * tick, 99 + 11*tick, 99 + 2*tick},
		{10 * tick, 99 + 10*tick, 99 + 2*tick}, // and back
		{11 * tick, 99 + 11*tick, 99},
	} {
		if lead := s.ahead(c.raw, c.gtod); lead != c.lead {
			t.Errorf("stamps %d: %d ahead, want %d", i, lead, c.lead)
		}
	}
}
