package symbol

import (
	"io"
	"sync/atomic"
)

// Native reads what only files of C, C++ and Rust have. Package native provides it: a
// program that probes its own Go code alone does without, and is smaller.
type Native struct {
	// Demangle writes a mangled C++ or Rust name as people do. It is false if the name is none.
	Demangle func(name string, form Form) (string, bool)
	// Unxz decompresses one xz stream, to at most limit bytes.
	Unxz func(z []byte, limit uint64) ([]byte, error)
	// CRC32 gives the IEEE CRC-32 of what r has, by which a debug link names its file (.gnu_debuglink).
	CRC32 func(r io.Reader) (uint32, error)
}

// Form is how much of a demangled name is written.
type Form int

// The forms of a demangled name.
const (
	WithParams     Form = iota // with parameters, and the return type where the name has one; no clone suffix
	NoParams                   // without
	NoTemplateArgs             // without template arguments either
)

// nativePath is the package whose import provides what is Native.
const nativePath = "kprobes.dev/kprobes/native"

var native atomic.Pointer[Native]

// ProvideNative is called by package native.
func ProvideNative(n *Native) { native.Store(n) }
