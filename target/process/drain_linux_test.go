package process

import (
	"errors"
	"testing"
)

// TestDrained: a thread that is in the code is waited for longer than one that may come back, since it leaves when it gets to run. Other errors end the wait at once.
func TestDrained(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		name  string
		err   error // of the first tries
		until int
		tries int
		want  error
	}{
		{"leaves late", errLeaving, drainTries + 10, drainTries + 11, nil},
		{"may come back", ErrInDetour, 2 * drainTries, drainTries, ErrInDetour},
		{"comes back no more", ErrInDetour, 3, 4, nil},
		{"other", other, 5, 1, other},
	} {
		tries := 0
		err := drained(func() error {
			if tries++; tries > c.until {
				return nil
			}
			return c.err
		})
		if !errors.Is(err, c.want) || tries != c.tries {
			t.Errorf("%s: %v after %d tries, want %v after %d", c.name, err, tries, c.want, c.tries)
		}
	}
	if !errors.Is(errLeaving, ErrInDetour) {
		t.Error("who knows ErrInDetour does not know errLeaving")
	}
}
