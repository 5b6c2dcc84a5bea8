package symbol

import (
	"strconv"
	"strings"
)

// unescapeGo undoes the %xx that the toolchain writes for dots in the last element of an import
// path and for bytes that are not ASCII (cmd/internal/objabi, PathToPrefix). ok is false for a name
// without them, or with a % that no two hexadecimal digits follow.
func unescapeGo(name string) (plain string, ok bool) {
	before, rest, ok := strings.Cut(name, "%")
	if !ok {
		return "", false
	}
	var b strings.Builder
	b.Grow(len(name))
	for {
		b.WriteString(before)
		if len(rest) < 2 {
			return "", false
		}
		c, err := strconv.ParseUint(rest[:2], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		var more bool
		if before, rest, more = strings.Cut(rest[2:], "%"); !more {
			b.WriteString(before)
			return b.String(), true
		}
	}
}
