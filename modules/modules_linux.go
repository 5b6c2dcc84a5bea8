package modules

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/target/self"
)

func init() { self.EnableModules() }

// Table has the modules of a target, and their log. It may be used by several goroutines.
type Table struct {
	e *engine.Core
	t *modules.Table

	mu       sync.Mutex
	watching bool          // somebody looks for handlers that have faulted
	given    modules.Place // of the log, what a loop over Lines was given
}

// Of gives the modules of what a Core probes: always the same Table. nil is the program's own process, kprobes.Self.
//
// Errors: those of kprobes.Self; EOPNOTSUPP if the target takes no modules.
func Of(core *kprobes.Core) (*Table, error) {
	if core == nil {
		var err error
		if core, err = kprobes.Self(); err != nil {
			return nil, err
		}
	}
	e := engine.Of(core)
	t, err := e.Extension(func() (any, error) {
		t, err := modules.New(e, 0)
		if err != nil {
			return nil, err
		}
		t.TakeRecords()
		return &Table{e: e, t: t}, nil
	})
	if err != nil {
		return nil, err
	}
	return t.(*Table), nil
}

// Module is a module that has been loaded.
type Module struct {
	Name string
	Size uint64 // bytes of its memory, without what kmalloc gives

	t *Table
	m *modules.Module
}

// Insert is insmod: it loads an object under a name, sets its parameters (NAME=VALUE), and calls its start, which registers its probes. When it returns these are armed.
// It takes as long as the start does.
//
// Errors: EEXIST if a module of that name is loaded; ENOEXEC for code that uses registers which no handler may change; what the object is not good for, or lacks: a
// name that nobody has, for one; EINVAL for a parameter's value; the error number that the start has returned, and EFAULT if something has faulted in it: then
// what it has registered is taken out, and the module too. Why a registration was refused is in the log.
func (t *Table) Insert(name string, object io.ReaderAt, params ...string) (*Module, error) {
	o, err := kmod.Parse(object)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	var ps []kmod.Param
	for _, p := range params {
		ps = append(ps, kmod.ParseParam(p))
	}
	name = kmod.Name(name)
	if err := t.t.Insert(name, o, ps, nil); err != nil {
		return nil, err
	}
	t.watch()
	for _, m := range t.List() {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("module %s was removed as soon as it was loaded", name)
}

// List gives the modules, the last that was loaded first.
func (t *Table) List() (list []*Module) {
	for _, m := range t.t.List() {
		list = append(list, &Module{m.Name, m.Size, t, m})
	}
	return list
}

// Permanent says whether the module can not be removed: it has a start (module_init), and no end (module_exit).
func (m *Module) Permanent() bool { return m.m.Permanent() }

// Remove is rmmod: it calls the module's end, takes out what it has left registered, waits until no thread runs its code, and gives its memory back.
//
// Errors: ENOENT if the module is not loaded any more; EBUSY if it is Permanent. Any other error says what has stayed, and why.
func (m *Module) Remove() error { return m.t.t.Remove(m.Name) }

// faultsEvery is the pause between two looks for handlers that have faulted.
const faultsEvery = 100 * time.Millisecond

// watch has a goroutine disable the probes in whose handlers something has faulted, while there are modules.
func (t *Table) watch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watching {
		return
	}
	t.watching = true
	go func() {
		for t.watched() {
			t.t.CheckFaults()
			time.Sleep(faultsEvery)
		}
	}()
}

// watched says whether there is something to watch.
func (t *Table) watched() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watching = !t.t.Empty() && !t.e.Closed() && !t.e.Ended()
	return t.watching
}

// Compile compiles the source of a module with gcc, or with what the variable CC names, and gives the object. name is the module's. The error has what
// the compiler says.
func Compile(name string, source []byte) (object []byte, err error) {
	dir, err := os.MkdirTemp("", "kprobes-module-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, kmod.Name(name)+".c")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		return nil, err
	}
	out, _, err := kmod.Compile(dir, file)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
