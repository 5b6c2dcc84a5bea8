//go:build !cgo

// Declarations without a body need a file of assembly.
