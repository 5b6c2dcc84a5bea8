package symbol

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"lookupKey", "lookupKeyRead", "processCommand", "processcommand2", "xyz"}
	for name, want := range map[string]string{
		"lokupKey":                "lookupKey",
		"LOOKUPKEY":               "lookupKey",
		"processComand":           "processCommand",
		"lookupKeyR":              "lookupKey lookupKeyRead",
		"qqqq":                    "",
		"x":                       "",
		strings.Repeat("a", 1000): "",
	} {
		got := strings.Join(Nearest(name, names), " ")
		if want != "" && !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestQuestion(t *testing.T) {
	for want, names := range map[string][]string{
		"":                                  nil,
		`; did you mean "a"?`:               {"a"},
		`; did you mean "a" or "b"?`:        {"a", "b"},
		`; did you mean "a", "b" or "c\n"?`: {"a", "b", "c\n"},
	} {
		if got := DidYouMean(names); got != want {
			t.Errorf("%q: %s, want %s", names, got, want)
		}
	}
}
