package process

import (
	"encoding/binary"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
)

var le = binary.LittleEndian

// maxFrame bounds the distance between two frames, in bytes: a frame pointer that leads
// farther is none.
const maxFrame = 1 << 24

// walkFrames fills pcs with the return addresses of the calls in progress: that of the
// innermost stands ret bytes above the stack pointer (-1: it is not known where), the others
// beside the frame pointers, a chain from bp upwards. It ends where the chain does, where
// it leads down, and where no code can be. It believes nothing that it reads.
func walkFrames(mem native.Memory, sp, bp uint64, ret int, pcs []uint64) (n int) {
	var b [16]byte
	last := uint64(0) // of the places that return addresses were read from
	if ret >= 0 && len(pcs) > 0 {
		at := sp + uint64(ret)
		if mem.Read(at, b[:8]) != nil || !isCode(le.Uint64(b[:])) {
			return 0
		}
		pcs[0], n, last = le.Uint64(b[:]), 1, at
	}
	for low := sp; n < len(pcs) && bp >= low && bp-low < maxFrame && bp%8 == 0; {
		if mem.Read(bp, b[:]) != nil {
			break
		}
		up, pc := le.Uint64(b[:]), le.Uint64(b[8:])
		if bp+8 > last { // else it is the innermost's, which is known
			if !isCode(pc) {
				break
			}
			pcs[n] = pc
			n++
		}
		low, bp = bp+16, up
	}
	return n
}

// isCode says whether an address can be one of a program's code.
func isCode(pc uint64) bool { return pc >= procfs.Lowest && pc < procfs.UserTop }
