package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"kprobes.dev/kprobes/internal/btf"
	"kprobes.dev/kprobes/internal/errno"
)

// FuncTypes gives the kernel's own types, in the form that functions are looked up in. They are read at the first call. The error is
// ENOENT if the kernel has none.
func (k *Kernel) FuncTypes() (*btf.Spec, error) {
	k.funcTypesOnce.Do(func() {
		raw, err := k.rawTypes()
		if err == nil {
			k.funcTypes, err = btf.Parse(raw, nil)
		}
		k.funcTypesErr = err
	})
	return k.funcTypes, k.funcTypesErr
}

// rawTypes reads the types that the kernel carries for itself (.BTF).
func (k *Kernel) rawTypes() ([]byte, error) {
	r, ok := k.between("__start_BTF", "__stop_BTF")
	if !ok {
		return nil, errno.Errorf(syscall.ENOENT, "kernel %s carries no types (BTF), which tell where its structures have their members: it must be built with CONFIG_DEBUG_INFO_BTF", k.Release())
	}
	return k.bytes(r.Start, r.End-r.Start, maxBTF, "the kernel's types (BTF)")
}

// errNoModuleTypes says that a module has brought no types.
var errNoModuleTypes = errors.New("the kernel keeps no types (BTF) of the module")

// FuncTypes gives the types that the module has brought, beside the kernel's own. The kernel keeps them in a list (btf_modules in
// kernel/bpf/btf.c, with CONFIG_DEBUG_INFO_BTF_MODULES). They are read at the first call.
func (m *Module) FuncTypes() (*btf.Spec, error) {
	m.typesOnce.Do(func() {
		if m.types, m.typesErr = m.kernel.moduleTypes(m.Struct); m.typesErr != nil {
			m.typesErr = fmt.Errorf("module %s: %w", m.Name, m.typesErr)
		}
	})
	return m.types, m.typesErr
}

// moduleTypes looks for the types of the module whose struct module is at an address.
func (k *Kernel) moduleTypes(module uint64) (*btf.Spec, error) {
	base, err := k.FuncTypes()
	if err != nil {
		return nil, err
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	head, ok := k.Addr("btf_modules")
	if !ok {
		return nil, errNoModuleTypes
	}
	o, of := &offsets{t: t, typ: "btf_module"}, &offsets{t: t, typ: "btf"}
	list, mod, types := o.of("list"), o.of("module"), o.of("btf")
	data, size := of.of("data"), of.of("data_size")
	if err := cmp.Or(o.err, of.err); err != nil {
		return nil, err
	}
	at, err := k.u64(head)
	for n := 0; err == nil && at != head && n < maxModules; n++ {
		owner, err1 := k.u64(at - list + mod)
		if err = err1; err != nil || owner != module {
			at, err = k.next(at, err)
			continue
		}
		addr, err1 := k.u64(at - list + types)
		where, err2 := k.u64(addr + data)
		length, err3 := k.u32(addr + size)
		if err := cmp.Or(err1, err2, err3); err != nil {
			return nil, err
		}
		raw, err := k.bytes(where, uint64(length), maxBTF, "a module's types (BTF)")
		if err != nil {
			return nil, err
		}
		return btf.Parse(raw, base)
	}
	return nil, cmp.Or(err, errNoModuleTypes)
}

// next gives the entry of a list behind one, unless there was an error.
func (k *Kernel) next(at uint64, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	return k.u64(at)
}
