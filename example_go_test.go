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
