package demoapp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname: short names, as a program's own functions have them
)

// database is one client's keys.
type database struct {
	mu   sync.RWMutex
	keys map[string]int
}

var (
	databases [Clients]database
	handled   atomic.Uint64
	looked    atomic.Uint64
)

// flagTouch asks get to take the lock for writing, as one that marks the key as used would.
const flagTouch = 1

var errRequest = errors.New("not one of: get DB FLAGS KEY, set DB KEY VALUE, sum DB")

// handle answers one request of a client.
//
//go:noinline
//go:linkname handle kv.handle
func handle(client int, request string) string {
	handled.Add(1)
	n, err := answer(strings.Fields(request))
	if err != nil {
		return fmt.Sprintf("error: client %d: %q: %v", client, request, err)
	}
	return strconv.Itoa(n)
}

// answer does what a request's words say.
//
//go:noinline
//go:linkname answer kv.answer
func answer(f []string) (int, error) {
	if len(f) < 2 {
		return 0, errRequest
	}
	db, err := strconv.ParseUint(f[1], 10, 16)
	if err != nil || db >= Clients {
		return 0, errRequest
	}
	switch {
	case f[0] == "get" && len(f) == 4:
		flags, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			return 0, errRequest
		}
		return get(int(db), f[3], uint32(flags)), nil
	case f[0] == "set" && len(f) == 4:
		v, err := strconv.Atoi(f[3])
		if err != nil {
			return 0, errRequest
		}
		return set(int(db), f[2], v), nil
	case f[0] == "sum" && len(f) == 2:
		return sum(int(db)), nil
	}
	return 0, errRequest
}

// get looks a key up. It returns -1 if the key is not there.
//
//go:noinline
//go:linkname get kv.get
func get(db int, key string, flags uint32) int {
	looked.Add(1)
	d := &databases[db]
	if flags&flagTouch != 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
	} else {
		d.mu.RLock()
		defer d.mu.RUnlock()
	}
	if v, ok := d.keys[key]; ok {
		return v
	}
	return -1
}

// set gives a key a value and returns the number of keys.
func set(db int, key string, v int) int {
	d := &databases[db]
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys == nil {
		d.keys = map[string]int{}
	}
	d.keys[key] = v
	return len(d.keys)
}

// sum adds all values up, in the order of their keys: this takes a while.
func sum(db int) int {
	d := &databases[db]
	d.mu.RLock()
	defer d.mu.RUnlock()
	n := 0
	for _, k := range slices.Sorted(maps.Keys(d.keys)) {
		n += d.keys[k]
	}
	return n
}

// step is a function whose own cost is as good as nothing.
//
//go:noinline
//go:linkname step kv.step
func step(a, b, c, d uint64) uint64 { return a + b ^ c + d }
