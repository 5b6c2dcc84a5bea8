package kernel_test

import (
	"strings"
	"sync"
	"testing"

	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// guest is a booted guest with some modules in it, and its memory.
type guest struct {
	*testguest.Guest
	*qemu.Machine
	own []string // the lines of /proc/kallsyms that belong to no module
}

const setup = `mount -t debugfs d /sys/kernel/debug 2>/dev/null; mount -t tracefs t /sys/kernel/tracing 2>/dev/null
echo 0 >/proc/sys/kernel/kptr_restrict`

// newGuest loads the modules and opens the guest's memory.
func newGuest(tb testing.TB, g *testguest.Guest) *guest {
	tb.Helper()
	g.Shell(setup)
	for _, name := range testguest.Modules {
		file := g.Module(name)
		if file == "" && name == "fs/fuse/fuse" && g.Kernel != guestkit.Cloud { // later kernels have it built in
			continue
		}
		g.Shell("insmod " + file)
	}
	m, err := qemu.Open(g.Spec, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return &guest{Guest: g, Machine: m}
}

// run has the guest's shell run a command, and gives what it prints.
func (g *guest) run(tb testing.TB, command string) string {
	tb.Helper()
	return g.Shell(command)
}

func (g *guest) lines(tb testing.TB, command string) []string {
	tb.Helper()
	return strings.Split(strings.TrimSpace(g.run(tb, command)), "\n")
}

// ram copies the memory.
func (g *guest) ram() []byte {
	r := g.Ranges()
	out := make([]byte, r[len(r)-1].End)
	for _, x := range r {
		copy(out[x.Start:], g.Bytes(x.Start, int(x.End-x.Start)))
	}
	return out
}

var shared struct {
	sync.Mutex
	g *guest
}

// booted gives the guest that the tests of this package share, and its kernel.
func booted(tb testing.TB) (*guest, *kernel.Kernel) {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	g := testguest.Shared(tb)
	if shared.g == nil {
		shared.g = newGuest(tb, g)
	}
	k, err := kernel.Find(shared.g)
	if err != nil {
		tb.Fatal(err)
	}
	return shared.g, k
}

func TestMain(m *testing.M) { testguest.Main(m) }
