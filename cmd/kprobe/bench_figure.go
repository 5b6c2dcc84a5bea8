package main

import (
	"fmt"
	"time"
)

// figure is what is held against a bar and is no cost of a hit.
type figure struct {
	What   string  `json:"figure"`
	Where  string  `json:"where"` // process or self
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`
	Bar    float64 `json:"bar"`
	AtMost bool    `json:"at_most"` // the bar is an upper one
	OK     bool    `json:"ok"`
	Of     string  `json:"of,omitempty"` // of what, and how much of it
	// Why and Failed are those of a cell.
	Why    string `json:"unavailable,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// idleTime is how long the thread that measures stops is left alone, to see what it sees then.
const idleTime = 50 * time.Millisecond

// Numbers of rounds in which everything is armed, and what is armed with --quick.
const (
	fullArmings  = 15
	quickPattern = "kprobes.dev/kprobes/internal/arch/*"
)

// set fills in the value.
func (f *figure) set(v float64) {
	f.Value, f.OK = v, v >= f.Bar
	if f.AtMost {
		f.OK = v <= f.Bar
	}
}

// error is what went wrong, if anything did.
func (f *figure) error() error {
	if f.Failed == "" {
		return nil
	}
	return fmt.Errorf("%s (%s): %s", f.What, f.Where, f.Failed)
}

func unavailable(fs []figure, why error) []figure {
	for i := range fs {
		fs[i].Why = escapedError(why)
	}
	return fs
}

func failed(fs []figure, err error) []figure {
	for i := range fs {
		fs[i].Failed = escapedError(err)
	}
	return fs
}

// What is wanted, and for a probe that was taken out what a measurement leaves room for.
const (
	barBatchProcess = 50_000.0  // probes installed in a second
	barBatchSelf    = 100_000.0 // likewise
	barStop         = 5.0       // ms for 1,000 probes
	barAttach       = 1000.0    // ms
	barMemory       = 200.0     // MB
	barEvents       = 5e6       // a second
	barAtomic       = 40.0      // ns
	barSleepable    = 3000.0    // ns
	barDisarmed     = 1.05      // times the call that was never probed
)

// armTries is how often a row is armed whose threads a busy machine keeps from stopping.
const armTries = 10
