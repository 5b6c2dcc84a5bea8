package guest

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/btf"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// Names implements target.Namer, by the types that the kernel and its modules carry (BTF).
func (t *Target) Names(r symbol.Resolved, name string, abi arch.ABI) fetch.Namer {
	spec, as, err := t.funcTypes(r, name)
	if err != nil {
		return btf.None(spec, err)
	}
	return spec.Scope(as, abi)
}

// Prototype gives a function as it is declared in C; "": the types do not tell.
func (t *Target) Prototype(r symbol.Resolved) string {
	spec, as, err := t.funcTypes(r, "")
	if err != nil {
		return ""
	}
	return spec.Prototype(as)
}

// funcTypes finds the types that tell of a function, and what they call it: as the definition does, or by its symbol.
// With an error spec, if not nil, has other types.
func (t *Target) funcTypes(r symbol.Resolved, name string) (spec *btf.Spec, as string, err error) {
	if r.Module.Main {
		spec, err = t.k.FuncTypes()
	} else {
		spec, err = t.moduleTypes(r.Module.Name)
	}
	if err != nil {
		return nil, "", err
	}
	names := []string{name, r.Func.Name}
	if i := slices.IndexFunc(names, spec.HasFunc); i >= 0 {
		return spec, names[i], nil
	}
	return spec, "", fmt.Errorf("the kernel's types (BTF) do not tell of function %s", r.Func.Name)
}

// moduleTypes gives the types that a module has brought.
func (t *Target) moduleTypes(name string) (*btf.Spec, error) {
	for _, m := range t.mods {
		if m.Name == name {
			return m.FuncTypes()
		}
	}
	return nil, fmt.Errorf("module %s is not loaded", name)
}
