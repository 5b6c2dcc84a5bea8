package qemu

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Roots gives what each vCPU has in CR3, in their order: 0 for one that was never started, and
// what firmware has there while it runs. Nothing is stopped for it, so that the values may be of
// different moments. For a machine that was opened for reading only it fails with ErrHeld where
// another has the monitor, or had it when it was opened.
func (m *Machine) Roots() ([]uint64, error) {
	mon := m.mon
	if m.opt.Unlocked {
		var err error
		if mon == nil { // to ask again would be to wait again
			return nil, fmt.Errorf("page tables of the vCPUs: %w", ErrHeld)
		}
		mon, err = dialMonitor(m.spec.QMP, readerWait, func(string) {})
		if errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("page tables of the vCPUs: %w", ErrHeld)
		}
		if err != nil {
			return nil, err
		}
		defer mon.close()
	}
	text, err := mon.human("info registers -a")
	if err != nil {
		return nil, err
	}
	return parseRoots(text)
}

// rootOf is part of a line of `info registers` (QEMU 7.2, target/i386/cpu-dump.c,
// x86_cpu_dump_state): 16 digits in 64-bit mode, 8 otherwise.
var rootOf = regexp.MustCompile(`\bCR3=([0-9a-f]{8,16})\b`)

// parseRoots finds CR3 of all vCPUs.
func parseRoots(text string) ([]uint64, error) {
	var roots []uint64
	for _, f := range rootOf.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			return nil, err
		}
		roots = append(roots, v)
	}
	if roots == nil {
		return nil, errno.Errorf(unix.EPROTO, "registers of QEMU (info registers -a): no CR3 in %.100q", text)
	}
	return roots, nil
}
