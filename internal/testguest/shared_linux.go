package testguest

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is the guest that the tests of a process share.
var shared struct {
	mu    sync.Mutex
	guest *Guest
}

// Shared gives one guest with default options to all tests of a process, which use it in
// turn: not in parallel. It is booted by the first and ended by Main.
func Shared(tb testing.TB) *Guest {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.guest == nil {
		g, err := boot(tb, nil)
		if err != nil {
			tb.Fatalf("guest: %v", err)
		}
		shared.guest = g
	}
	shared.guest.tb = tb
	return shared.guest
}

// Main runs a package's tests and ends the guest that they shared: its TestMain.
func Main(m *testing.M) {
	status := m.Run()
	if g := shared.guest; g != nil {
		if err := g.close(); err != nil {
			fmt.Fprintln(os.Stderr, "end of the shared guest:", err)
			status = max(status, 1)
		}
	}
	os.Exit(status)
}
