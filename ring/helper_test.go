package ring

import "testing"

func newTestRing(t testing.TB, cfg Config) *Ring {
	t.Helper()
	r, err := Create(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func allow(t testing.TB, rd *Reader, event uint16, smallest, largest int) {
	t.Helper()
	if err := rd.Allow(event, smallest, largest); err != nil {
		t.Fatal(err)
	}
}
