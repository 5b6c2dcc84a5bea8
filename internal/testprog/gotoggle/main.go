// Command gotoggle probes itself: eight threads run straight-line functions all the time, while
// probes on these are registered, enabled, change their form, are disabled and unregistered.
//
//	gotoggle        prints "ready"; commands: begin, round N, end, quit
//
// "begin" makes the own process a target and arms what stays, "end" takes all out again; the
// threads wait outside of this. "round" does a round of all kinds of changes, in which all is
// disarmed and armed N times in a row. The threads count their calls for themselves. The answer
// is a report: what was done since "begin", and what was found wrong in what the probes counted.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/self"
)

// report is the answer to a command.
type report struct {
	Toggles   int      `json:"toggles"`   // patches that changes have changed in memory
	Changes   int      `json:"changes"`   // each of which stopped the other threads
	Again     int      `json:"again"`     // changes that a thread was in the way of, and that were made again
	Postponed uint64   `json:"postponed"` // probes that had to wait
	Probes    int      `json:"probes"`    // that came and went, or were enabled and disabled
	Places    int      `json:"places"`    // instructions
	Refused   int      `json:"refused"`   // those at which no probe may stand
	Jumps     int      `json:"jumps"`     // probes that were jumps when they were looked at
	Traps     int      `json:"traps"`     // and breakpoints
	Exact     int      `json:"exact"`     // probes whose counts were compared exactly
	Within    int      `json:"within"`    // and with what was possible
	Hits      uint64   `json:"hits"`      // of those
	Missed    uint64   `json:"missed"`    // of them hits without a run of the handler
	Calls     uint64   `json:"calls"`     // of all functions
	GCs       uint32   `json:"gcs"`
	Heap      uint64   `json:"heap"` // bytes of what is reachable
	Problems  []string `json:"problems"`
}

// open makes the own process a target.
func open() (*kprobes.Core, error) {
	t, err := self.Attach(nil)
	if err != nil {
		return nil, err
	}
	return kprobes.Open(t, nil)
}

// shut leaves the process as it was.
func shut(c *kprobes.Core) error {
	err := c.Close(nil)
	if r := c.Target().Ring(); r != nil {
		err = errors.Join(err, r.Close())
	}
	return err
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// fill tells what of the process is as it is.
func (r *report) fill() {
	var ms runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&ms)
	r.GCs, r.Heap = ms.NumGC, ms.HeapAlloc
}

func main() {
	runtime.GOMAXPROCS(threads + 2)
	c, err := open()
	if err == nil {
		err = errors.Join(places(c), shut(c))
	}
	if err != nil {
		fail(err)
	}
	for i := range tallies {
		go work(&tallies[i])
	}
	run(false)
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	var r *toggling
	for in.Scan() && in.Text() != "quit" {
		var again int
		switch {
		case in.Text() == "begin":
			if r, err = begin(); err != nil {
				fail(err)
			}
		case in.Text() == "end" && r != nil:
			r.end()
		default:
			if _, err := fmt.Sscanf(in.Text(), "round %d", &again); err != nil || r == nil {
				fail(fmt.Errorf("command %q is not known, or comes before begin", in.Text()))
			}
			r.round(again)
		}
		if err := json.NewEncoder(os.Stdout).Encode(r.report); err != nil {
			fail(err)
		}
	}
	fmt.Println("{}")
}
