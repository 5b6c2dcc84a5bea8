package trace

import (
	"fmt"
	"strings"
	"sync"
)

// ErrorLog keeps what was last said about bad commands, as the kernel's error_log: the
// newest eight entries. The zero value is ready; it may be used by several goroutines.
type ErrorLog struct {
	mu      sync.Mutex
	entries []string
}

// logEntries is how many are kept (TRACING_LOG_ERRS_MAX, Linux 6.18).
const logEntries = 8

// Add logs an error at a time of CLOCK_MONOTONIC. detail is as event.Error.Detail gives it.
func (l *ErrorLog) Add(nanos uint64, detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == logEntries {
		l.entries = append(l.entries[:0], l.entries[1:]...)
	}
	l.entries = append(l.entries, fmt.Sprintf("[%5d.%06d] %s", nanos/1e9, nanos%1e9/1000, detail))
}

// Clear forgets all entries.
func (l *ErrorLog) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = nil
}

// String gives the entries, oldest first.
func (l *ErrorLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.entries, "")
}
