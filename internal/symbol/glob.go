package symbol

import "strings"

// Glob gives the functions that match a pattern, sorted by address: `*` stands for any
// run of characters, `?` for one, `[a-z]` and `[!a-z]` for one of a set, `\` takes the
// next as it is. Raw, Go and demangled names (without parameter list) count; a name equal
// to the pattern always matches. A function without a name goes by its address, as Pretty gives
// it (0x1a40). Parts of functions do not match, PLT stubs only if the pattern holds an @.
func (im *Image) Glob(pattern string) []*Func {
	t := im.table()
	hit := make([]bool, len(t.funcs))
	plt := strings.Contains(pattern, "@")
	words := globTokens(pattern)
	for i := range t.names {
		n := &t.names[i]
		fn := t.funcs[n.fn]
		if hit[n.fn] || !fn.Candidate() || fn.PLT && !plt {
			continue
		}
		hit[n.fn] = n.str == pattern || MatchGlob(pattern, n.str) || n.matchDemangled(pattern, words)
	}
	for i, fn := range t.funcs {
		if fn.Name == "" && !fn.PLT && fn.Candidate() {
			hit[i] = MatchGlob(pattern, fn.Pretty())
		}
	}
	var out []*Func
	for i, ok := range hit {
		if ok {
			out = append(out, t.funcs[i])
		}
	}
	return out
}

func (n *nameRef) matchDemangled(pattern string, words []string) bool {
	if mangling(n.str) == LangC || !holdsAll(n.str, words) {
		return false
	}
	return MatchGlob(pattern, Demangle(n.str))
}

// globTokens gives the identifiers that a mangled name must hold for its demangled form
// to match. Sets end a word.
func globTokens(pattern string) []string {
	if strings.ContainsAny(pattern, `[\`) {
		return nil
	}
	return tokens(pattern)
}

// MatchGlob says whether a string matches a pattern of Glob. It matches in time proportional to the product of the lengths: on a mismatch
// only the last star takes one character more.
func MatchGlob(p, s string) bool {
	star, mark, pi := -1, 0, 0
	for si := 0; si < len(s); {
		n := 0
		if pi < len(p) {
			if p[pi] == '*' {
				star, mark = pi, si
				pi++
				continue
			}
			n = globOne(p[pi:], s[si])
		}
		if n > 0 {
			pi, si = pi+n, si+1
			continue
		}
		if star < 0 {
			return false
		}
		mark++
		pi, si = star+1, mark
	}
	return strings.Trim(p[pi:], "*") == ""
}

// globOne gives the length of the pattern element that matches c, 0 if it does not.
func globOne(p string, c byte) int {
	switch p[0] {
	case '?':
		return 1
	case '\\':
		if len(p) > 1 {
			return matched(p[1] == c, 2)
		}
	case '[':
		if in, n := globSet(p, c); n > 0 {
			return matched(in, n)
		}
	}
	return matched(p[0] == c, 1)
}

func matched(ok bool, n int) int {
	if ok {
		return n
	}
	return 0
}

// globSet reads a set at the start of p: whether c is in it, and its length, 0 if it has
// no end.
func globSet(p string, c byte) (in bool, n int) {
	i := 1
	not := i < len(p) && (p[i] == '!' || p[i] == '^')
	if not {
		i++
	}
	for first := true; i < len(p); first = false {
		if p[i] == ']' && !first {
			return in != not, i + 1
		}
		lo, hi := p[i], p[i]
		if i+2 < len(p) && p[i+1] == '-' && p[i+2] != ']' {
			hi = p[i+2]
			i += 2
		}
		in = in || lo <= c && c <= hi
		i++
	}
	return false, 0
}
