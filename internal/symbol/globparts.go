package symbol

// ByteSet is a set of bytes: bit c%64 of word c/64 is byte c.
type ByteSet [4]uint64

// Has says whether c is in the set.
func (s *ByteSet) Has(c byte) bool { return s[c/64]>>(c%64)&1 != 0 }

func (s *ByteSet) add(c byte) { s[c/64] |= 1 << (c % 64) }

// Literal gives the parts of a pattern that one string matches.
func Literal(text string) [][]ByteSet {
	part := make([]ByteSet, len(text))
	for i := range text {
		part[i].add(text[i])
	}
	return [][]ByteSet{part}
}

// GlobParts gives what stands between the stars of a pattern of MatchGlob, each byte of it as the set of those that match. A string
// matches that begins with the first part, ends with the last one behind it, and has the others between them in their order: each may be
// taken where it is found first. Without a star there is one part, which is the whole string.
func GlobParts(pattern string) [][]ByteSet {
	parts := [][]ByteSet{{}}
	for i := 0; i < len(pattern); {
		if pattern[i] == '*' {
			parts = append(parts, []ByteSet{})
			i++
			continue
		}
		set, n := globElement(pattern[i:])
		last := len(parts) - 1
		parts[last] = append(parts[last], set)
		i += n
	}
	return parts
}

// globElement gives the bytes that the first element of a pattern matches, and its length.
func globElement(p string) (set ByteSet, n int) {
	n = 1
	switch p[0] {
	case '\\':
		n = min(2, len(p))
	case '[':
		_, n = globSet(p, 0)
		n = max(n, 1)
	}
	for c := range 256 {
		if globOne(p, byte(c)) > 0 {
			set.add(byte(c))
		}
	}
	return set, n
}
