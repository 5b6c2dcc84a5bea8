package engine

import (
	"errors"
	"testing"
)

// TestAlsoTold keeps an error that is told once where another one comes before anybody asks, and no error twice.
func TestAlsoTold(t *testing.T) {
	once, often := errors.New("a debugger has attached"), errors.New("a thread is in the way")
	var kept error
	for _, err := range []error{once, often, often, often} {
		kept = alsoTold(kept, err)
	}
	if !errors.Is(kept, once) || kept.Error() != "a debugger has attached\na thread is in the way" {
		t.Errorf("%q", kept)
	}
	for range 1000 {
		kept = alsoTold(kept, errors.New(string(make([]byte, len(kept.Error())+1))))
		if len(kept.Error()) > 4*maxKept {
			t.Fatalf("%d bytes are kept", len(kept.Error()))
		}
	}
}
