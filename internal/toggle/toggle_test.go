package toggle

import "testing"

func TestWindow(t *testing.T) {
	w := Window{
		EndedBefore: Calls{"f": 10}, BegunArmed: Calls{"f": 13},
		EndedArmed: Calls{"f": 20}, BegunAfter: Calls{"f": 24},
	}
	for hits, ok := range map[uint64]bool{6: false, 7: true, 14: true, 15: false} {
		if err := w.Check("f", hits); (err == nil) != ok {
			t.Errorf("%d hits: %v", hits, err)
		}
	}
	if err := (&Window{BegunArmed: Calls{"f": 3}, BegunAfter: Calls{"f": 3}}).Check("f", 0); err != nil {
		t.Errorf("nothing ended: %v", err)
	}
}

func TestPatches(t *testing.T) {
	for _, c := range []struct {
		before, after string
		want          int
	}{
		{"same", "same", 0},
		{"0123456789", "-123456789", 1},
		{"0123456789", "-----56789", 1},
		{"0123456789", "0-2-4-6789", 1},
		{"0123456789", "----------", 2},
		{"0123456789", "0-----678-", 2},
		{"012", "", 0},
	} {
		if got := Patches([]byte(c.before), []byte(c.after)); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.before, c.after, got, c.want)
		}
	}
}
