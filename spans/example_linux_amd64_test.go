package spans_test

import (
	"fmt"
	"log"
	"strings"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/spans"
)

func ExampleStart() {
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	show := func(more []*spans.Span) {
		for _, s := range more {
			_, name, _ := strings.Cut(s.Name, ".dev/kprobes/spans_test.")
			fmt.Println(name, s.Parent == spans.SpanID{}, s.Attrs[3].Key, s.Attrs[3].Value)
		}
	}
	// With Endpoint: "http://localhost:4318" a collector gets them.
	s, err := spans.Start(core, &spans.Options{Export: show},
		"kprobes.dev/kprobes/spans_test.order shop.order=$arg1:s64",
		"kprobes.dev/kprobes/spans_test.query n=$arg2:s64")
	if err != nil {
		log.Fatal(err)
	}
	order(7, 2)
	if err := s.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// query false n 0
	// query false n 1
	// order true shop.order 7
}
