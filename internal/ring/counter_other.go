//go:build !amd64

package ring

// Now is CLOCK_MONOTONIC in nanoseconds: on this architecture the generated code has no
// other clock yet.
func Now() uint64 { return monotonic() }
