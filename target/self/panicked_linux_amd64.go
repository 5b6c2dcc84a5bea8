package self

import (
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"kprobes.dev/kprobes/internal/target"
)

// reason says in words why a handler was abandoned.
//
//go:norace
func (h *hit) reason() fmt.Stringer {
	if h.trap != trapPanic {
		return target.Why("at " + where(uintptr(h.faultPC)) + ", address 0x" + strconv.FormatUint(h.faultAddr, 16))
	}
	return &panicked{value: *(*any)(unsafe.Pointer(&h.panicType))}
}

// panicked is the value of a panic in a handler. Its text is made when it is asked for: an error's own
// method makes it, which must not run where the handler ran.
type panicked struct {
	value any
	once  sync.Once
	text  string
}

func (p *panicked) String() string {
	p.once.Do(func() {
		made := make(chan string, 1)
		go func() {
			defer close(made)
			made <- "panic: " + fmt.Sprint(p.value) // which recovers from a panic in the value's method
		}()
		select {
		case p.text = <-made:
		case <-time.After(panicTextIn):
		}
		if p.text == "" { // a lock that the handler has left locked, for one
			p.text = "panic of a " + reflect.TypeOf(p.value).String() + ", which does not tell its text"
		}
		if len(p.text) > maxPanicText {
			p.text = p.text[:maxPanicText] + "..."
		}
		p.value = nil
	})
	return p.text
}

// where names a place in the code.
func where(pc uintptr) string {
	f := runtime.FuncForPC(pc)
	if f == nil {
		return "0x" + strconv.FormatUint(uint64(pc), 16)
	}
	return f.Name() + "+0x" + strconv.FormatUint(uint64(pc-f.Entry()), 16)
}
