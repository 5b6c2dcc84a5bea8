package linux

import (
	"fmt"
	"strings"

	"kprobes.dev/kprobes/event"
)

const (
	filterCaret = "^"
	filterError = "parse_error: "
)

// refusedFilter makes the error of a filter that the kernel did not take: its own text and caret, which the event's file of the
// filter shows from then on, below the filter.
func refusedFilter(filter, shown string, cause error) error {
	_, told, _ := strings.Cut(shown, "\n")
	caret, told, _ := strings.Cut(told, "\n")
	text, _, _ := strings.Cut(told, "\n")
	text, ok := strings.CutPrefix(text, filterError)
	if pos := strings.Index(caret, filterCaret); ok && pos >= 0 {
		for c := event.FilterErrno; c <= event.FilterNoFilter; c++ {
			if c.Text() == text {
				return &event.FilterError{Code: c, Filter: filter, Pos: pos}
			}
		}
		return fmt.Errorf("filter %q, column %d: %s: %w", filter, pos+1, text, cause)
	}
	return fmt.Errorf("filter %q: the kernel gives no reason: %w", filter, cause)
}
