package engine

import (
	"fmt"
	"strings"
	"unicode"
)

// printable keeps names and messages on their line and harmless to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// plainly is a reason on one line, without where in the code it applies.
func plainly(why error) string {
	if why == nil {
		return ""
	}
	return printable(fmt.Sprint(why))
}
