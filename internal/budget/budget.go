// Package budget reads and writes budgets of events as text: 10k/s, 5ms/s.
package budget

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Budget is the most that an event may take a second; 0 sets no bound.
type Budget struct {
	Hits  uint64
	Nanos uint64 // of work
}

// units are the letters that may stand behind the number of hits.
var units = map[byte]uint64{'k': 1_000, 'M': 1_000_000, 'G': 1_000_000_000}

// most is the most that Set takes of both.
const most = 1_000_000_000_000

// Set takes one bound, of hits or of time. The other stays.
func (b *Budget) Set(text string) error {
	number, ok := strings.CutSuffix(text, "/s")
	if d, err := time.ParseDuration(number); ok && err == nil && d > 0 && d <= most {
		b.Nanos = uint64(d)
		return nil
	}
	unit := uint64(1)
	if n := len(number); n > 0 && units[number[n-1]] > 0 {
		unit, number = units[number[n-1]], number[:n-1]
	}
	hits, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || hits == 0 || hits > most/unit {
		return fmt.Errorf("hits a second are wanted, from 1/s to 1000G/s (10k/s), or time, from 1ns/s to 1000s/s (5ms/s)")
	}
	b.Hits = hits * unit
	return nil
}

// String gives the bounds as Set takes them, with a space between two.
func (b Budget) String() string {
	var all []string
	if b.Hits > 0 {
		all = append(all, fmt.Sprintf("%d/s", b.Hits))
	}
	if b.Nanos > 0 {
		all = append(all, fmt.Sprintf("%v/s", time.Duration(b.Nanos)))
	}
	return strings.Join(all, " ")
}
