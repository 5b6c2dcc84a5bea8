// Package spans makes spans of the calls of functions, in the sense of OpenTelemetry, in the program that imports it, or in another target of
// package kprobes. No function is changed: probes stand at their entries and returns while the spans are made.
//
//	core, err := kprobes.Self()
//	s, err := spans.Start(core, &spans.Options{Endpoint: "http://localhost:4318", Sets: []string{"net/http"}},
//		"main.(*Shop).Order user n",
//		"main.query db.query.text=sql --kind client")
//	defer s.Close()
//
// A span has the time from the call to its return, the arguments and results as attributes, the status error where the call has failed, and
// the call that it is in as its parent: the innermost one on its goroutine, or the one in which its goroutine was created. The page
// docs/kprobe-spans.md of this module tells what a span has, what is left out, and what each probe costs.
//
// Spans go to a collector (Options.Endpoint), to a writer as lines of OTLP's JSON (Options.JSON), and to a function of the program
// (Options.Export).
//
// # Who reads the hits
//
// A Spans reads the hits of its Core until it is closed, since the records of all events lie in one ring. Nobody else may: no loop over
// Core.Hits, no Core.Poll, and none of packages hitlog, trace and debughttp with the same Core. Options.Hit takes hits of other events. Handlers
// (Kprobe, Kretprobe, Jprobe) need no reader and work beside it. A Core has one Spans at a time.
//
// # The program's own spans of sending
//
// A program that makes spans of net/http's client, and sends them by that, would make spans without end. So in the own process calls of the
// goroutines that this package starts, and of those that are created in them, are no spans, and are counted (Stats.Hidden): those that send,
// and the one that calls Options.Export, Log, LeftOut and Hit. Their probes are run all the same, so that what they call costs a little more.
// They are known by a probe on runtime.newproc1. If its records are lost (Stats.Lost), a goroutine of these may have spans.
//
// A collector that runs in the program itself is no goroutine of this package. Do not make spans of what it does to take them: each batch
// would bring forth the next.
//
// # Deadlocks
//
// Options.Hit and Log may run while the ring is read: they must call neither the Core nor the Spans. Options.Export may, but for Close, which
// waits for it.
package spans
