// Package native lets a program that probes itself name its C++ and Rust functions as people write
// them, ns::Server::handle, and find functions by the compressed symbol table of a stripped library
// (.gnu_debugdata) and by debug files that have a checksum in place of a build-id (.gnu_debuglink). Import it for that effect:
//
//	import _ "kprobes.dev/kprobes/native"
//
// Who probes another process has it: target/process imports it. A program of Go alone needs it
// not, and is smaller by a megabyte without.
package native

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/ianlancetaylor/demangle"

	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/xz"
)

func init() { symbol.ProvideNative(&symbol.Native{Demangle: demangled, Unxz: unxz, CRC32: checksum}) }

// maxDemangled bounds the length of a demangled name: 2 to its power, bytes.
const maxDemangled = 16

func demangled(name string, form symbol.Form) (string, bool) {
	opts := []demangle.Option{demangle.MaxLength(maxDemangled)}
	switch form {
	case symbol.WithParams:
		opts = append(opts, demangle.NoClones)
	case symbol.NoParams:
		opts = append(opts, demangle.NoParams)
	case symbol.NoTemplateArgs:
		opts = append(opts, demangle.NoParams, demangle.NoTemplateParams)
	}
	s, err := demangle.ToString(name, opts...)
	return s, err == nil
}

func unxz(z []byte, limit uint64) ([]byte, error) {
	b, err := xz.Decompress(z, limit)
	if errors.Is(err, xz.ErrLimit) {
		err = fmt.Errorf("%w: %w", symbol.ErrLimit, err)
	}
	return b, err
}

func checksum(r io.Reader) (uint32, error) {
	h := crc32.NewIEEE()
	_, err := io.Copy(h, r)
	return h.Sum32(), err
}
