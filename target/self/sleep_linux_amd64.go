package self

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"fmt"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
)

// A sleepable handler runs on a goroutine of its own while the one that hit waits. That is
// what the runtime does for a debugger that calls a function (runtime/debugcall.go): a frame
// that the garbage collector scans conservatively stands above the probed function's, the
// goroutine is parked, and a new one takes over its thread, to which it is locked. So the
// thread's word in busyTable keeps the handler's own hits from running handlers.

// The frame of a goroutine that waits, from its stack pointer up: room for what the runtime's
// function spills, the hit, what the detour's frame takes. The linker allows nosplit code 800
// bytes in all.
const (
	sleepFrame = 744
	sleepHit   = 16
)

const _ = uint(sleepFrame - sleepHit - unsafe.Sizeof(hit{}) - amd64.MaxRoomFrame)

// Stack that the goroutine which hits must have, in bytes.
const (
	sleepNeed = 2304 // below the point: the frame, and what the runtime calls before it parks
)

// What the gate calls, fixed by findWrap.
var (
	debugCallWrap uint64 // runtime.debugCallWrap
	sleepDispatch uint64 // dispatchSleep
)

// findWrap finds the runtime's function that starts a handler's goroutine.
func (t *Target) findWrap() error {
	fns, err := t.Space().Main().Image.Lookup("runtime.debugCallWrap")
	if err != nil {
		return fmt.Errorf("sleepable handlers: %w", err)
	}
	for _, fn := range fns {
		if !fn.ABI0 {
			debugCallWrap = t.Space().Main().Runtime(fn.Addr)
		}
	}
	f := dispatchSleep
	sleepDispatch = uint64(**(**uintptr)(unsafe.Pointer(&f)))
	return nil
}

// dispatchSleep runs the handler whose hit its thread has noted. The hit lies on another
// goroutine's stack, of which the race detector knows nothing.
//
//go:norace
func dispatchSleep() {
	m := word(currentG() + gateM)
	h := hitAt(word(busyTable+8*uint64(uint32(word(m+gateProcID)))) &^ seenMask)
	h.action = uint64(h.desc.missed)
	defer h.recovered()
	d := h.desc
	if d.h.Off != nil && d.h.Off.Load() {
		return
	}
	if d.off.Load() {
		addStopped(d)
		return
	}
	h.action = h.land(d.h.Run(&h.regs, h.instance))
}

// recovered deals with a panic of a sleepable handler.
//
//go:norace
func (h *hit) recovered() {
	v := recover()
	if v == nil {
		return
	}
	d := h.desc
	if d.h.Fault == nil || !d.h.Fault(&h.regs, target.TrapPanic, target.Why(fmt.Sprintf("panic: %v", v))) {
		d.off.Store(true)
	}
}

// hitAt is the hit at an address on a stack that does not move while it is there.
//
//go:nocheckptr
func hitAt(addr uint64) *hit { return *(**hit)(unsafe.Pointer(&addr)) }
