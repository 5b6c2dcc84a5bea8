// Package phys is what a guest's memory looks like to who reads it: ranges of physical
// addresses, and the bytes at them.
package phys

import "kprobes.dev/kprobes/internal/interval"

// Memory is a machine's RAM. The bytes are the live memory itself: the guest may change them
// at any time, and who writes to them writes to the guest's memory.
type Memory interface {
	// Ranges gives the RAM, ascending, neither empty nor touching each other.
	Ranges() []interval.Range
	// Bytes gives the memory [pa, pa+n), nil where that is not RAM in one range. It stays
	// valid until the machine is closed.
	Bytes(pa uint64, n int) []byte
}
