// Package demoapp is the program that kprobe demo probes: a small key-value server with
// a thread for each client, which knows nothing of probes. It counts for itself what it
// does, so that what probes count has something independent to be compared with.
//
// Serve is the program, Start is how the demo runs it: as a process of its own, that
// takes one command a line on its standard input and answers with one line of JSON.
//
//	pause     waits until no request is under way and holds the clients: Counts
//	resume    lets them go on: Counts
//	call N    calls kv.step N times on one thread: Cost
package demoapp

// Names of the functions that are there to be probed, as the program's symbol table has
// them.
const (
	// Handle answers a request: func(client int, request string) (answer string).
	Handle = "kv.handle"
	// Get looks a key up: func(db int, key string, flags uint32) int. It returns the
	// value, or -1 if the key is not there.
	Get = "kv.get"
	// Step does next to nothing: func(a, b, c, d uint64) uint64.
	Step = "kv.step"
)

// Clients is the number of clients, and of databases: client N works in database N.
const Clients = 4

// Counts is what the workload has counted so far.
type Counts struct {
	Handle uint64 `json:"handle"` // requests answered
	Get    uint64 `json:"get"`    // keys looked up
	// Wrong is the number of answers that were not what the client expected: 0, always.
	Wrong uint64 `json:"wrong"`
}

// Cost is how long some calls took.
type Cost struct {
	Calls uint64 `json:"calls"`
	Nanos uint64 `json:"nanos"` // of all of them together
}

// PerCall is the time of one call in nanoseconds.
func (c Cost) PerCall() float64 { return float64(c.Nanos) / float64(max(c.Calls, 1)) }
