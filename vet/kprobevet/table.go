package kprobevet

import (
	"go/types"
	"strings"
)

// Names of operations that are statements or expressions, not calls.
const (
	opChannel = "channel"
	opSelect  = "select"
	opDefer   = "defer"
	opPanic   = "panic"
)

// operation is a row of the list in docs/HANDLERS.md.
type operation struct {
	name string
	// words describe what is no call of a function that has a name in some package.
	words []string
	// calls are functions and methods, pkg.Func and pkg.Type.Method; a * at the end stands
	// for anything.
	calls []string
	// instead is what to do in place of it, for the report.
	instead string
}

// operations are those of docs/HANDLERS.md that can be found; a test holds the two together.
var operations = []operation{
	{
		name:    opChannel,
		words:   []string{"send to a channel", "receive from a channel", "range over a channel"},
		instead: "send in a select with default",
	},
	{
		name:    opSelect,
		words:   []string{"select without default"},
		instead: "give it a default",
	},
	{
		name:    "sleep",
		calls:   []string{"time.Sleep"},
		instead: "start a timer in advance",
	},
	{
		name: "lock",
		calls: []string{
			"sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock", "sync.Locker.Lock",
			"sync.WaitGroup.Wait", "sync.Cond.Wait", "sync.Once.Do",
		},
		instead: "use sync/atomic, or TryLock",
	},
	{
		name:    "schedule",
		calls:   []string{"runtime.Gosched", "runtime.GC", "runtime.Goexit", "runtime/debug.FreeOSMemory"},
		instead: "return",
	},
	{
		name:    "print",
		calls:   []string{"fmt.*", "log.*", "log/slog.*", "testing.*"},
		instead: "print what the handler has stored, from elsewhere",
	},
	{
		name: "io",
		calls: []string{
			"os.Chdir", "os.Create*", "os.Exit", "os.File.*", "os.Getwd", "os.Lstat", "os.Mkdir*", "os.Open*",
			"os.Pipe", "os.Process.*", "os.Read*", "os.Remove*", "os.Rename", "os.StartProcess", "os.Stat", "os.Write*",
			"os/exec.*", "net.Dial*", "net.Listen*", "net.Lookup*", "net.Conn.*", "net.Dialer.*", "net.Listener.*",
			"net.Resolver.*", "net.TCPConn.*", "net.UDPConn.*", "net.UnixConn.*", "net/http.*",
			"syscall.Open", "syscall.Read", "syscall.Write", "syscall.Syscall*",
			"golang.org/x/sys/unix.Open", "golang.org/x/sys/unix.Read", "golang.org/x/sys/unix.Write", "golang.org/x/sys/unix.Syscall*",
		},
		instead: "hand the work to a goroutine",
	},
	{
		name:    opPanic,
		words:   []string{"panic"},
		instead: "return",
	},
	{
		name:    opDefer,
		words:   []string{"defer in a loop", "defer beside one in a loop", "more than 8 defers in a function", "defers times returns above 15"},
		instead: "call it at the end",
	},
}

// find gives the operation of a name.
func find(name string) *operation {
	for i := range operations {
		if operations[i].name == name {
			return &operations[i]
		}
	}
	return nil
}

// ofCall gives the operation that a call of a function is, nil if it is none.
func ofCall(fn *types.Func) *operation {
	name := callName(fn)
	for i := range operations {
		for _, p := range operations[i].calls {
			if head, glob := strings.CutSuffix(p, "*"); name == p || glob && strings.HasPrefix(name, head) {
				return &operations[i]
			}
		}
	}
	return nil
}

// callName is pkg.Func or pkg.Type.Method.
func callName(fn *types.Func) string {
	return strings.NewReplacer("(", "", ")", "", "*", "").Replace(fn.Origin().FullName())
}
