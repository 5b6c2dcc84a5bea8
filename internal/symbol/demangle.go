package symbol

import (
	"strings"
)

// maxMangled bounds the names that are demangled, in bytes.
const maxMangled = 16 << 10

// Demangle gives a C++ or Rust name without parameter list as people write it; other
// names come back as they are, and so do all without package native.
func Demangle(name string) string {
	s, ok := demangled(name, NoParams)
	if !ok {
		return name
	}
	return s
}

// DemangleFull is Demangle with the parameter list.
func DemangleFull(name string) string {
	s, ok := demangled(name, WithParams)
	if !ok {
		return name
	}
	return s
}

func demangled(name string, form Form) (string, bool) {
	n := native.Load()
	if n == nil || mangling(name) == LangC || len(name) > maxMangled {
		return "", false
	}
	return n.Demangle(name, form)
}

// mangling tells the language from the form of a raw name.
func mangling(name string) Lang {
	switch {
	case strings.HasPrefix(name, "_R"):
		return LangRust
	case strings.HasPrefix(name, "_ZN") && hasRustHash(name):
		return LangRust
	case strings.HasPrefix(name, "_Z"):
		return LangCPP
	}
	return LangC
}

// hasRustHash recognises the hash that ends a legacy Rust name: 17h, 16 hex digits, E.
func hasRustHash(name string) bool {
	if i := strings.LastIndex(name, "E."); i > 0 {
		name = name[:i+1]
	}
	const tail = len("17h0123456789abcdefE")
	i := len(name) - tail
	return i > 0 && strings.HasPrefix(name[i:], "17h") && name[len(name)-1] == 'E'
}

// suffix says what a compiler-made suffix makes of a name.
type suffix uint8

const (
	suffixNone  suffix = iota
	suffixClone        // another copy of the same function: .isra, .constprop, .lto_priv, .llvm, .localalias
	suffixPart         // .part
	suffixCold         // .cold
)

// splitSuffix gives the name without the suffixes that gcc and clang add, what they make
// of it together, and for parts the name of the function they were split from.
func splitSuffix(name string) (base string, kind suffix, of string) {
	start := strings.IndexByte(name[min(1, len(name)):], '.')
	if start < 0 {
		return name, suffixNone, ""
	}
	base = name
	for {
		i, k := lastSuffix(base)
		if k == suffixNone {
			return base, kind, of
		}
		base = base[:i]
		if k >= suffixPart {
			of = base
		}
		kind = max(kind, k)
	}
}

// lastSuffix gives the start and the kind of the last known suffix of a name: ".word" or
// ".word.N".
func lastSuffix(name string) (int, suffix) {
	i := strings.LastIndexByte(name, '.')
	if i <= 0 {
		return 0, suffixNone
	}
	word := name[i+1:]
	if isDigits(word) {
		j := strings.LastIndexByte(name[:i], '.')
		if j <= 0 {
			return 0, suffixNone
		}
		word, i = name[j+1:i], j
	}
	switch word {
	case "cold":
		return i, suffixCold
	case "part", "__part":
		return i, suffixPart
	case "isra", "constprop", "lto_priv", "llvm", "localalias", "actually":
		return i, suffixClone
	}
	return 0, suffixNone
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// abbreviated are words that may stand in a demangled name without standing in the
// mangled one.
var abbreviated = []string{
	"std", "allocator", "basic_string", "string", "istream", "ostream", "iostream",
	"basic_istream", "basic_ostream", "basic_iostream", "char_traits", "operator", "new",
	"delete", "co_await", "anonymous", "namespace", "lambda", "unnamed", "type", "auto",
	"decltype", "const", "volatile", "restrict", "signed", "unsigned", "void", "wchar_t",
	"bool", "char", "short", "int", "long", "__int128", "float", "double", "__float128",
	"char8_t", "char16_t", "char32_t", "decimal32", "decimal64", "decimal128", "half",
	"nullptr_t", "true", "false", "thunk", "virtual", "non", "to", "guard", "variable",
	"for", "vtable", "VTT", "typeinfo", "name", "fn", "construction", "in", "covariant",
	"return", "override", "noexcept", "throw", "sizeof", "alignof", "typeid", "requires",
	"init", "TLS", "wrapper", "function", "reference", "temporary", "transaction", "clone",
	"template", "parameter", "object", "cxx11", "abi", "closure", "shim", "vtable", "mut",
	"dyn", "extern", "str", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32",
	"i64", "i128", "isize", "f32", "f64", "impl", "as", "fixed", "point", "enable_if",
	"default", "arg", "module", "initializer", "structured", "binding", "static_cast",
}

// tokens gives the identifiers of a query that every mangled name of a match holds as a
// substring: what makes most names not worth demangling.
func tokens(query string) []string {
	var out []string
	for len(query) > 0 {
		n := 0
		for n < len(query) && isIdent(query[n]) {
			n++
		}
		if w := query[:n]; n > 0 && !isDigits(w[:1]) && !mayBeAbbreviated(w) {
			out = append(out, w)
		}
		query = query[max(n, 1):]
	}
	return out
}

func isIdent(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func mayBeAbbreviated(word string) bool {
	for _, a := range abbreviated {
		if strings.Contains(a, word) {
			return true
		}
	}
	return false
}

func holdsAll(name string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(name, w) {
			return false
		}
	}
	return true
}
