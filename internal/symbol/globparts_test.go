package symbol

import (
	"math/rand/v2"
	"testing"
)

// matchParts matches a string as the description of GlobParts says.
func matchParts(parts [][]ByteSet, s string) bool {
	at := func(part []ByteSet, i int) bool {
		if i < 0 || i+len(part) > len(s) {
			return false
		}
		for j := range part {
			if !part[j].Has(s[i+j]) {
				return false
			}
		}
		return true
	}
	if len(parts) == 1 {
		return len(s) == len(parts[0]) && at(parts[0], 0)
	}
	if !at(parts[0], 0) {
		return false
	}
	pos, last := len(parts[0]), parts[len(parts)-1]
	for _, p := range parts[1 : len(parts)-1] {
		for !at(p, pos) {
			if pos++; pos > len(s) {
				return false
			}
		}
		pos += len(p)
	}
	return len(s)-len(last) >= pos && at(last, len(s)-len(last))
}

// TestGlobParts compares the parts of patterns with the patterns.
func TestGlobParts(t *testing.T) {
	patterns := []string{"", "*", "**", "a", "a*", "*a", "*a*", "a*b*c", "?", "*?", "[ab]*[!b]", "[a", "a[", `\*a`, `a\`, `[^]a]*`, "[]", "[a-c]?*x", "a**b"}
	strings := []string{"", "a", "ab", "abc", "axbxc", "*a", "[a", "a[", `a\`, "x", "ca", "]", "[]", "bax", "aab"}
	r := rand.New(rand.NewPCG(1, 2))
	text := func(alphabet string, n int) string {
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	for range 3000 {
		patterns, strings = append(patterns, text(`ab*?[]!-^\`, 10)), append(strings, text(`ab[]*-\`, 12))
	}
	matched := 0
	for i, p := range patterns {
		parts := GlobParts(p)
		for _, s := range append(strings[:30:30], strings[i%len(strings)]) {
			want := MatchGlob(p, s)
			if got := matchParts(parts, s); got != want {
				t.Errorf("%q of %q: %v, want %v", p, s, got, want)
			}
			if want {
				matched++
			}
		}
	}
	if matched < 1000 {
		t.Errorf("%d have matched", matched)
	}
	if !matchParts(Literal("a*"), "a*") || matchParts(Literal("a*"), "ab") {
		t.Error("a literal")
	}
}
