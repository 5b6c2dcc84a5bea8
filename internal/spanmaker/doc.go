// Package spanmaker makes spans of the calls of functions in one target. It makes the definitions of the probes that this takes, chooses what
// of a set the program has, takes the hits of the probes, and hands out the spans.
//
//	m := spanmaker.New(core, calls, &spanmaker.Options{…})
//	defs, err := m.Define()   // who uses it adds these to the core
//	err = m.Prepare(events)   // before the first hit is taken
//	m.Hit(h); m.Lost(); m.Idle()
//	m.Finish()                // when the last hit has been taken
//
// It knows neither where spans go nor who asks for them: spans are handed to Options.Emit, and what people should know to Options.Tell. The
// methods of a Maker are called by one goroutine at a time.
package spanmaker
