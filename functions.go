package kprobes

import (
	"iter"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
)

// Function is a function of a target.
type Function struct {
	Name string // as Core.List names it: of C++ and Rust demangled
	// Object is the base name of the file that it belongs to; "" for the program's own.
	Object string
	Addr   uint64 // of its first instruction in the running target; it is what Kprobe.Addr takes
	Size   uint64 // in bytes, at least 1

	core *Core
	at   symbol.Resolved
}

// Functions lists the functions of the target that match a pattern, in the order of their addresses in each object. The pattern is
// [OBJECT:]NAME: `*` stands for any characters, `?` for one, `[a-z]` for one of a set, and `\` takes the next as it is, as the one in
// `main.(\*Server).Handle`. Without an object the program's own file is meant, "*:NAME" means all that are mapped. What has no code of
// its own, since all of its calls were inlined, is not listed. Objects are those that were mapped at Open, or at the last Sync.
//
// With the Register…OrSkip functions a handler comes to all of them that can have it.
func (c *Core) Functions(pattern string) iter.Seq[*Function] {
	return func(yield func(*Function) bool) {
		for _, r := range c.e.Matching(pattern) {
			f := &Function{Name: r.Func.Pretty(), Addr: r.Addr, Size: r.Func.Size, core: c, at: r}
			if !r.Module.Main {
				f.Object = r.Module.Name
			}
			if !yield(f) {
				return
			}
		}
	}
}

// Check says why no event or Kprobe can stand at the function's entry, as Core.Check does; nil: one can, as far as that can be told
// without touching the target. It analyses the function's code, which takes some microseconds.
func (f *Function) Check() error { return f.core.e.CheckFunction(f.at, event.Probe) }

// CheckReturn says why no return event or Kretprobe can stand at the function, as Check does.
func (f *Function) CheckReturn() error { return f.core.e.CheckFunction(f.at, event.Return) }

// Signature tells the function's parameters and results as its language writes types: "func(item string, count int) int" of Go, with
// whole import paths and a receiver as the first parameter, "int (char* path, int flags)" of others. The error says why it is not
// known: without debug information no file tells it. The first call for an object reads its debug information.
func (f *Function) Signature() (string, error) { return f.core.e.Signature(f.at) }

// Inlined is the number of the function's calls in its object that the compiler has inlined. No probe at the function's entry sees
// them; AddOptions.Inlines has events stand there too. Go programs tell it also without debug information, others by that alone. The
// error says why it is not known.
func (f *Function) Inlined() (calls int, err error) { return f.core.e.InlinedCalls(f.at) }
