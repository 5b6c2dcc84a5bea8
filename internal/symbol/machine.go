package symbol

import (
	"debug/elf"
	"slices"

	"kprobes.dev/kprobes/internal/arch/amd64/amd64obj"
	"kprobes.dev/kprobes/internal/arch/arm64/arm64obj"
	"kprobes.dev/kprobes/internal/arch/objfile"
)

// machines are those whose files are read.
var machines = []*objfile.Machine{&amd64obj.Machine, &arm64obj.Machine}

// machineOf finds the description of a processor; nil: there is none.
func machineOf(m elf.Machine) *objfile.Machine {
	i := slices.IndexFunc(machines, func(d *objfile.Machine) bool { return d.ELF == m })
	if i < 0 {
		return nil
	}
	return machines[i]
}
