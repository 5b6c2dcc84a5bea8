package ringpage

import (
	"os"
	"testing"
)

// TestHeaders compares the header files with those of the kernel that runs here.
func TestHeaders(t *testing.T) {
	for name, want := range map[string]string{"header_page": HeaderPage, "header_event": HeaderEvent} {
		b, err := os.ReadFile("/sys/kernel/tracing/events/" + name)
		if err != nil {
			t.Fatalf("mount tracefs, as ./test does: %v", err)
		}
		if string(b) != want {
			t.Errorf("%s:\n%s, want\n%s", name, want, b)
		}
	}
}
