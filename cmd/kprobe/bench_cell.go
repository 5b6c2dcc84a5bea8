package main

import (
	"errors"
	"slices"
)

// cell is what was measured of one row, on one class, with some threads.
type cell struct {
	Row     string  `json:"row"`
	What    string  `json:"what"`
	Class   string  `json:"class"`
	Where   string  `json:"where"` // whereProcess or whereSelf
	Threads int     `json:"threads"`
	Tactic  string  `json:"tactic,omitempty"`
	NS      float64 `json:"ns"`   // per call of the function, beyond the unprobed call
	Low     float64 `json:"low"`  // of the rounds, likewise
	High    float64 `json:"high"` // of the rounds, likewise
	Call    float64 `json:"call"` // ns of the unprobed call
	Rounds  int     `json:"rounds"`
	Hits    uint64  `json:"hits"` // as the probe counted them
	Want    uint64  `json:"want"` // as the program made them
	Lost    uint64  `json:"lost"`
	// Why is the reason where this machine does not offer the row; then nothing else is
	// known. Failed is what went wrong while it was measured; then the times mean nothing.
	Why    string `json:"unavailable,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// known says whether the cell has a time.
func (c *cell) known() bool { return c.Why == "" && c.Failed == "" }

// round is the time of a call in one round, in ns.
type round struct{ plain, probed float64 }

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// sum fills in the times: the cost is the difference of the medians, low and high those of
// single rounds.
func (c *cell) sum(rs []round) {
	var plain, probed, diff []float64
	for _, r := range rs {
		plain, probed = append(plain, r.plain), append(probed, r.probed)
		diff = append(diff, r.probed-r.plain)
	}
	c.Call, c.Rounds = median(plain), len(rs)
	c.NS = median(probed) - c.Call
	c.Low, c.High = slices.Min(diff), slices.Max(diff)
}

// errCount says that a probe's count is not the program's own.
var errCount = errors.New("hits are not what the program counted")

// errRing says that records were lost, so that a round's time means nothing.
var errRing = errors.New("records were lost")

// ratio is a comparison of two cells of one class, or of one with a time.
type ratio struct {
	What   string  `json:"ratio"`
	Class  string  `json:"class"`
	Value  float64 `json:"value"`
	Bar    float64 `json:"bar"`
	AtMost bool    `json:"at_most"` // the bar is an upper one
	OK     bool    `json:"ok"`
}

// whereSelf and whereProcess say where a cell or a figure was measured.
const (
	whereProcess = "process"
	whereSelf    = "self"
)
