// Program asking probes a function of its own by an event whose arguments read memory. It prints the thread's id, and
// for each byte on its standard input it calls the function with a good pointer as often as it is told. Then it
// calls it with bad pointers, and prints "ok" if each record says what was there. Built with the tag acts it sets the action
// of SIGSEGV to the default before that, by the system call itself.
package main

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"unsafe"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

//go:noinline
func take(p uintptr) uintptr { return p + 1 }

var (
	text = [8]byte{'a', ' ', 't', 'e', 'x', 't'}
	sink uintptr
)

// own sets the action of SIGSEGV.
var own = func() {}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	calls, _ := strconv.Atoi(os.Args[2])
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	many, err := event.Parse("p kprobes.dev/kprobes/internal/symbol.*") // so that faults are looked up among many
	if err != nil {
		log.Fatal(err)
	}
	if _, err := core.Add([]*event.Def{many}, &kprobes.AddOptions{Count: true, Skip: func(string, error) {}}); err != nil {
		log.Fatal(err)
	}
	d, err := event.Parse("p:a main.take s=+0(%ax):string v=+0(%ax):u8")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := core.Add([]*event.Def{d}, nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println(syscall.Gettid())
	var b [1]byte
	good := uintptr(unsafe.Pointer(&text))
	for range rounds {
		readByte(&b)
		for range calls {
			sink = take(good)
		}
	}
	readByte(&b)
	own()
	for range calls {
		sink = take(8)
	}
	told := map[string]int{}
	if err := core.Close(func(h *hit.Hit) {
		vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
		if err != nil {
			log.Fatal(err)
		}
		told[fmt.Sprintf("%q %v %d", vs[0].Str, vs[0].Fault, vs[1].Num)]++
	}); err != nil {
		log.Fatal(err)
	}
	if told[`"a text" false 97`] != rounds*calls || told[`"" true 0`] != calls || len(told) != 2 {
		log.Fatalf("records %v", told)
	}
	fmt.Println("ok")
}

// readByte reads without telling the scheduler, which would make system calls of its own.
//
//go:nosplit
func readByte(b *[1]byte) {
	for {
		if n, _, _ := syscall.RawSyscall(syscall.SYS_READ, 0, uintptr(unsafe.Pointer(b)), 1); n == 1 {
			return
		} else if n == 0 {
			os.Exit(3)
		}
	}
}
