package modules

import (
	"errors"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/target"
)

// heapSize is the memory that a module has for kmalloc, in bytes.
const heapSize = 256 << 10

// Linked is a module whose bytes stand in a target.
type Linked struct {
	target.Module
	Image   *kmod.Image // as it was before it ran
	formats map[uint64]string
	plain   map[uint64]bool           // addresses of functions that take no arguments, of those that the target has for modules
	uses    map[uint64]native.SlotUse // by the address of a handler
}

// plainFunctions take no arguments (linux/kp_runtime.h).
var plainFunctions = []string{"__kp_slot", "__kp_current", "__kp_nanoseconds", "dump_stack", "jprobe_return"}

// Link puts a module's object into a target that has been prepared, with its parameters. Nothing of it runs yet. unknown tells of parameters
// that it does not take. Errors: kmod.ErrObject (a name that nobody has, among others), those of kmod.Image.Set, and what the target says.
func Link(load target.ModuleLoader, rt *target.ModuleRuntime, o *kmod.Object, params []kmod.Param, unknown func(name string)) (*Linked, error) {
	l := o.Layout(params)
	m, err := load.NewModule(&target.ModuleSize{
		Text: l.Size[kmod.Text], Rodata: l.Size[kmod.Rodata], Data: l.Size[kmod.Data], PerCPU: l.Size[kmod.PerCPU], Heap: heapSize,
	})
	if err != nil {
		return nil, err
	}
	linked := &Linked{Module: m, plain: map[uint64]bool{}, uses: map[uint64]native.SlotUse{}}
	for _, name := range plainFunctions {
		linked.plain[rt.Symbols[name]] = true
	}
	if err := linked.link(l, rt, params, unknown); err != nil {
		return nil, errors.Join(err, m.Unload())
	}
	return linked, nil
}

// link makes the module's bytes and writes them.
func (m *Linked) link(l *kmod.Layout, rt *target.ModuleRuntime, params []kmod.Param, unknown func(string)) (err error) {
	mem := m.Memory()
	at := [kmod.Parts]uint64{kmod.Text: mem.Text.Start, kmod.Rodata: mem.Rodata.Start, kmod.Data: mem.Data.Start, kmod.PerCPU: mem.PerCPU.Start}
	known := map[string]uint64{"__kp_percpu_stride": l.Size[kmod.PerCPU], "__kp_heap": mem.Heap.Start, "__kp_heap_end": mem.Heap.End, "__kp_cpus": uint64(rt.CPUs)}
	m.Image, err = l.Link(at, func(name string) (uint64, bool) {
		if addr, ok := rt.Symbols[name]; ok {
			return addr, true
		}
		addr, ok := known[name]
		return addr, ok
	})
	if err != nil {
		return err
	}
	if err := m.Image.Set(l, params, unknown); err != nil {
		return err
	}
	m.formats = m.Image.Formats(l)
	for part, b := range m.Image.Bytes {
		copies := 1
		if kmod.Part(part) == kmod.PerCPU {
			copies = rt.CPUs
		}
		for n := range copies {
			if len(b) == 0 {
				break
			}
			if err := m.Write(at[part]+uint64(n*len(b)), b); err != nil {
				return err
			}
		}
	}
	return nil
}

// use is what a handler of the module does with the registers that it is given.
func (m *Linked) use(handler uint64) native.SlotUse {
	use, ok := m.uses[handler]
	if !ok {
		use = native.SlotUseOf(m.Image.Bytes[kmod.Text], m.Memory().Text.Start, handler, m.plain)
		m.uses[handler] = use
	}
	return use
}

// size is how many bytes of memory the module takes, without what it has for kmalloc.
func (m *Linked) size() (n uint64) {
	mem := m.Memory()
	for _, r := range mem.All() {
		n += r.End - r.Start
	}
	return n - (mem.Heap.End - mem.Heap.Start)
}
