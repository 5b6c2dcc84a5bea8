//go:build linux && amd64 && !race

package kprobes_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/process"
)

// What the examples probe. A function that the compiler may inline has no code of its own.

//go:noinline
func price(item string, count int) int {
	till += len(item) * count
	return len(item) * count
}

//go:noinline
func discount(percent int) int {
	till -= percent
	return 100 - percent
}

var till int

//go:noinline
func order(items []string) string {
	var b strings.Builder
	for _, item := range items {
		b.WriteString(item[:1])
	}
	return b.String()
}

const examples = "kprobes.dev/kprobes_test." // the package's name in the program

// A handler before the instruction and one after it. Handlers are atomic: these only write to
// variables that nobody else uses meanwhile.
func ExampleKprobe() {
	var count uint64
	var before, after uint64
	k := &kprobes.Kprobe{
		SymbolName: examples + "price",
		PreHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs) int {
			count = regs.Arg(2) // a string is two words
			before = regs.IP - p.Addr
			return 0
		},
		PostHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs, _ uint64) {
			after = regs.IP - p.Addr
		},
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		log.Fatal(err)
	}
	sum := price("tea", 4)
	kprobes.UnregisterKprobe(k)
	fmt.Println("price", sum, "count", count)
	fmt.Println("ip", before, "bytes behind the probe, then more:", after > before)
	fmt.Println("hits", k.State().Hits, "missed", k.NMissed())
	// Output:
	// price 12 count 4
	// ip 0 bytes behind the probe, then more: true
	// hits 1 missed 0
}

// The path is changed: the function is left at its entry with another result. That asks for a
// probe that is not optimised, for which the empty post handler stands.
func ExampleKprobe_changePath() {
	k := &kprobes.Kprobe{
		SymbolName: examples + "discount",
		PreHandler: func(_ *kprobes.Kprobe, regs *kprobes.Regs) int {
			if regs.Arg(0) <= 100 {
				return 0 // go on
			}
			regs.SetReturnValue(0)
			if regs.Return() != nil {
				return 0
			}
			return 1 // go on where regs.IP says
		},
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {},
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		log.Fatal(err)
	}
	defer kprobes.UnregisterKprobe(k)
	fmt.Println(discount(30), discount(130))
	// Output: 70 0
}

// Data takes a value from a call's entry to its return. Calls that the entry handler lets go
// have no return handler.
func ExampleKretprobe() {
	var sums [3]uint64
	n := 0
	r := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: examples + "price"},
		EntryHandler: func(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
			ri.Data[0] = byte(regs.Arg(2))
			if regs.Arg(2) == 0 {
				return 1
			}
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
			sums[n] = 100*uint64(ri.Data[0]) + regs.ReturnValue()
			n++
			return 0
		},
		DataSize: 1,
	}
	if err := kprobes.RegisterKretprobe(r); err != nil {
		log.Fatal(err)
	}
	price("tea", 4)
	price("tea", 0)
	price("sugar", 3)
	kprobes.UnregisterKretprobe(r)
	fmt.Println(sums[:n], "missed", r.NMissed())
	// Output: [412 315] missed 0
}

// Entry is called with the arguments themselves, and may do with them what it likes. It must
// not keep pointers into them: what it wants of a string or slice it copies.
func ExampleJprobe() {
	var first [16]byte
	var n, size int
	j := &kprobes.Jprobe{
		Kp: kprobes.Kprobe{SymbolName: examples + "order"},
		Entry: func(items []string) string {
			size = len(items)
			n = copy(first[:], items[0])
			items = nil
			return "" // jprobe_return()
		},
	}
	if err := kprobes.RegisterJprobe(j); err != nil {
		log.Fatal(err)
	}
	initials := order([]string{"tea", "sugar", "milk"})
	kprobes.UnregisterJprobe(j)
	fmt.Println(size, "items, the first is", string(first[:n]))
	fmt.Println(initials)
	// Output:
	// 3 items, the first is tea
	// tsm
}

// All probes of a batch are registered, in one stop of the program, or none.
func ExampleRegisterKprobes() {
	hits := 0
	count := func(*kprobes.Kprobe, *kprobes.Regs) int { hits++; return 0 }
	batch := []*kprobes.Kprobe{
		{SymbolName: examples + "price", PreHandler: count},
		{SymbolName: examples + "noSuchFunction", PreHandler: count},
	}
	err := kprobes.RegisterKprobes(batch)
	fmt.Println("no such function:", errors.Is(err, unix.ENOENT))
	price("tea", 1)
	fmt.Println("hits", hits, "address", batch[0].Addr)

	batch[1].SymbolName = examples + "discount"
	if err := kprobes.RegisterKprobes(batch); err != nil {
		log.Fatal(err)
	}
	price("tea", 1)
	discount(1)
	kprobes.UnregisterKprobes(batch)
	fmt.Println("hits", hits)
	// Output:
	// no such function: true
	// hits 0 address 0
	// hits 2
}

// A sleepable handler is ordinary Go: it runs on a goroutine of its own, while the one that
// hit waits for it.
func ExampleKprobe_sleepable() {
	k := &kprobes.Kprobe{
		SymbolName: examples + "order",
		Flags:      kprobes.FlagSleepable,
		PreHandler: func(_ *kprobes.Kprobe, regs *kprobes.Regs) int {
			time.Sleep(time.Millisecond)
			fmt.Println("order of", regs.Arg(1), "items")
			return 0
		},
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		log.Fatal(err)
	}
	defer kprobes.UnregisterKprobe(k)
	fmt.Println(order([]string{"tea", "milk"}))
	// Output:
	// order of 2 items
	// tm
}

// A probe that is disabled costs nothing and is still listed.
func ExampleDisableKprobe() {
	hits := 0
	k := &kprobes.Kprobe{
		SymbolName: examples + "price",
		PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { hits++; return 0 },
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		log.Fatal(err)
	}
	defer kprobes.UnregisterKprobe(k)
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	show := func() {
		var list strings.Builder
		if err := core.List(&list); err != nil {
			log.Fatal(err)
		}
		price("tea", 1)
		address := fmt.Sprintf("%x", k.Addr) // differs between programs
		f := strings.Fields(strings.ReplaceAll(list.String(), address, "ADDRESS"))
		fmt.Println(f[0], f[1], f[len(f)-1], "hits", hits)
	}
	show()
	_ = kprobes.DisableKprobe(k) // fails only if it is not registered, or in a handler
	show()
	_ = kprobes.EnableKprobe(k)
	show()
	// Output:
	// ADDRESS k [OPTIMIZED] hits 1
	// ADDRESS k [DISABLED] hits 1
	// ADDRESS k [OPTIMIZED] hits 2
}

//go:noinline
func secret(key []byte) int { return len(key) }

// A program keeps probes out of a function.
func ExampleNoKprobe() {
	if err := kprobes.NoKprobe(secret); err != nil {
		log.Fatal(err)
	}
	err := kprobes.RegisterKprobe(&kprobes.Kprobe{SymbolName: examples + "secret"})
	fmt.Println(errors.Is(err, unix.EINVAL), secret(nil))
	// Output: true 0
}

// Events record arguments without a handler; they are read at leisure.
func ExampleCore_Add() {
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	def, err := event.Parse("p:prices " + examples + "price item=$arg1:gostring count=$arg3:s64")
	if err != nil {
		log.Fatal(err)
	}
	events, err := core.Add([]*event.Def{def}, nil)
	if err != nil {
		log.Fatal(err)
	}
	price("tea", 4)
	price("milk", 2)
	for n := 0; n < 2; {
		n += core.Poll(func(h *kprobes.Hit) {
			args, err := h.AppendArgs(nil, nil)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%s:%s\n", h.Event.Name, args)
		})
	}
	_ = core.Remove(events)
	fmt.Println(core.Counts(events[0]).Hits, "hits")
	// Output:
	// prices: item="tea" count=4
	// prices: item="milk" count=2
	// 2 hits
}

// The same API in another process: the handlers run here, while the thread that hit waits. They
// may print; FlagSleepable changes nothing there, and tells kprobevet so.
func ExampleOpen() {
	proc, err := process.OpenUnwaited(4711)
	if err != nil {
		log.Fatal(err)
	}
	defer proc.Close()
	target, err := process.Attach(proc, nil)
	if err != nil {
		log.Fatal(err)
	}
	core, err := kprobes.Open(target, nil)
	if err != nil {
		log.Fatal(err)
	}
	k := &kprobes.Kprobe{
		SymbolName: "lookupKey",
		Flags:      kprobes.FlagSleepable,
		PreHandler: func(_ *kprobes.Kprobe, regs *kprobes.Regs) int {
			fmt.Fprintf(os.Stderr, "lookupKey(%#x)\n", regs.Arg(0))
			return 0
		},
	}
	if err := core.RegisterKprobe(k); err != nil {
		log.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	if err := core.Close(nil); err != nil { // every byte is as it was
		log.Fatal(err)
	}
}
