//go:build linux && amd64 && !race

package kprobes_test

import (
	"context"
	"fmt"
	"log"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// addEvent adds one event to the own process.
func addEvent(text string) (*kprobes.Core, []*kprobes.Event) {
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	def, err := event.Parse(text)
	if err != nil {
		log.Fatal(err)
	}
	events, err := core.Add([]*event.Def{def}, nil)
	if err != nil {
		log.Fatal(err)
	}
	return core, events
}

// A loop over the hits of events, whose body is ordinary Go. It ends with the context.
func ExampleCore_Hits() {
	core, events := addEvent("p:prices " + examples + "price item=$arg1:gostring count=$arg3:s64")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		price("tea", 4)
		price("milk", 2)
		cancel()
	}()
	items := 0
	for hit := range core.Hits(ctx) {
		count := hit.Value("count").(int64)
		items += int(count)
		fmt.Println(hit.Event.Name, hit.Value("item"), count)
	}
	_ = core.Remove(events) // fails only if the threads of the program can not be stopped in time
	fmt.Println(items, "items")
	// Output:
	// prices tea 4
	// prices milk 2
	// 6 items
}

// shop is what a pattern matches below: its methods are functions with names of their own.
type shop struct{ sold, asked int }

//go:noinline
func (s *shop) sell(n int) { s.sold += n }

//go:noinline
func (s *shop) ask() int { s.asked++; return s.sold }

// Every function that matches a pattern gets a handler, but for those that can not have one.
func ExampleCore_Functions() {
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	calls := map[string]*uint64{}
	var probes []*kprobes.Kprobe
	for f := range core.Functions(examples + "(*shop).*") {
		n := new(uint64)
		calls[f.Name] = n
		probes = append(probes, &kprobes.Kprobe{
			Addr:       f.Addr,
			PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { *n++; return 0 },
		})
	}
	err = core.RegisterKprobesOrSkip(probes, func(k *kprobes.Kprobe, why error) {
		fmt.Printf("%#x is left out: %v\n", k.Addr, why)
	})
	if err != nil {
		log.Fatal(err)
	}
	var s shop
	s.sell(3)
	s.sell(4)
	fmt.Println(s.ask(), "sold")
	core.UnregisterKprobes(probes)
	for _, name := range []string{"(*shop).ask", "(*shop).sell"} {
		fmt.Println(name, *calls[examples+name])
	}
	// Output:
	// 7 sold
	// (*shop).ask 1
	// (*shop).sell 2
}

// What a function is like, and whether it can be probed.
func ExampleFunction() {
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	for _, pattern := range []string{examples + "price", "runtime.GC", "runtime.sigreturn__sigaction"} {
		for f := range core.Functions(pattern) {
			fmt.Println(f.Name, f.Object == "", f.Check() == nil)
		}
	}
	// Output:
	// kprobes.dev/kprobes_test.price true true
	// runtime.GC true true
	// runtime.sigreturn__sigaction true false
}

// The code at the hit counts; the histogram is a value, or text.
func ExampleCore_Histogram() {
	def, err := event.Parse("p:counts " + examples + "price item=$arg1:gostring count=$arg3:s64")
	if err != nil {
		log.Fatal(err)
	}
	if def.Hist, err = event.ParseHist("keys=item:vals=count:sort=hitcount.descending"); err != nil {
		log.Fatal(err)
	}
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	events, err := core.Add([]*event.Def{def}, nil)
	if err != nil {
		log.Fatal(err)
	}
	for n := range 3 {
		price("tea", n)
	}
	price("milk", 7)
	hist, err := core.Histogram(events[0])
	if err != nil {
		log.Fatal(err)
	}
	_ = core.Remove(events)
	for _, e := range hist.Entries() {
		fmt.Println(e.Keys[0], "calls", e.Hits, "items", e.Sums[0])
	}
	fmt.Println(hist.Hits(), "calls,", hist.Dropped(), "dropped")
	// Output:
	// tea calls 3 items 3
	// milk calls 1 items 7
	// 4 calls, 0 dropped
}

// A typed handler gets a method's receiver and arguments. It is atomic, and keeps no pointers to what they lead to.
func ExampleOnCall() {
	total := 0
	j, err := kprobes.OnCall((*shop).sell, func(s *shop, n int) { total += n })
	if err != nil {
		log.Fatal(err)
	}
	var s shop
	s.sell(3)
	s.sell(4)
	kprobes.UnregisterJprobe(j)
	fmt.Println("sold", total, "in", j.State().Hits, "calls")
	// Output: sold 7 in 2 calls
}

// The arguments and the results of a call, at its return.
func ExampleOnReturn() {
	teas, cents := 0, 0
	r, err := kprobes.OnReturn(price, func(item string, count int, sum int) {
		if item == "tea" {
			teas += count
			cents += sum
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	price("tea", 4)
	price("milk", 2)
	price("tea", 1)
	kprobes.UnregisterKretprobe(r)
	fmt.Println(teas, "teas for", cents)
	// Output: 5 teas for 15
}
