package main

import (
	"errors"
	"fmt"

	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// examineGuest looks at a machine and the kernel in it. Nothing is changed and nothing is
// stopped.
func examineGuest(spec string) []finding {
	m, err := openMachine(spec, toProbe)
	if errors.Is(err, qemu.ErrHeld) {
		m, err = openMachine(spec, toRead)
	}
	if err != nil {
		return []finding{fine("machine", "%v", err).fail("QEMU must have been started with\n" + qemu.Flags())}
	}
	defer m.Close()
	fs := []finding{machineOf(m), ringOf(m)}
	t, err := guest.Attach(m, nil)
	if err != nil {
		return append(fs, fine("guest kernel", "%v", err).fail("a guest can be probed whose kernel is Linux 5.8 or later for x86-64, has come up, and has CONFIG_KALLSYMS_ALL and CONFIG_DEBUG_INFO_BTF"))
	}
	return append(fs, kernelOf(t), placesOf(t), leftOf(t))
}

func machineOf(m *qemu.Machine) finding {
	const check = "machine"
	size := uint64(0)
	for _, r := range m.Ranges() {
		size += r.End - r.Start
	}
	switch m.Accel() {
	case "":
		return fine(check, "%d MB of RAM; somebody holds it, so that more can not be asked", size>>20)
	case "tcg":
		return fine(check, "%d vCPUs emulated by software, %d MB of RAM", m.CPUs(), size>>20)
	}
	return fine(check, "%d vCPUs by %s, %d MB of RAM", m.CPUs(), m.Accel(), size>>20).
		warn("this was not measured with " + m.Accel() + ": docs/guest.md tells what may differ")
}

func ringOf(m *qemu.Machine) finding {
	const check = "guest memory"
	if _, mem := m.Shared(); mem != nil {
		return fine(check, "an ivshmem device of %d MB takes code and records", len(mem)>>20)
	}
	return fine(check, "there is no ivshmem device: code and records go below 1 MiB").
		warn("there is room for some hundred probes on up to two CPUs; for more start QEMU with -object memory-backend-file,id=ring,size=32M,mem-path=/dev/shm/RING,share=on -device ivshmem-plain,memdev=ring")
}

func kernelOf(t *guest.Target) finding {
	va, pa := t.Kernel().Base()
	return fine("guest kernel", "Linux %s at 0x%x (physical 0x%x), %d symbols, %d modules", t.Kernel().Release(), va, pa,
		len(t.Kernel().Symbols()), len(t.Space().Modules())-1)
}

func placesOf(t *guest.Target) finding {
	const check = "guest tables"
	p, err := t.Kernel().Places()
	if err != nil {
		return fine(check, "%v", err).fail("without them nobody knows what must not be patched")
	}
	return fine(check, "%d functions that its function tracer knows", len(p.FtraceSites()))
}

func leftOf(t *guest.Target) finding {
	const check = "guest probes"
	l, err := t.FindLeftover()
	switch {
	case err != nil:
		return fine(check, "%v", err).fail("what stands there can not be told")
	case l == nil:
		return fine(check, "none of ours stand there")
	case l.Alive():
		return fine(check, "%d sites of process %d, which runs", len(l.Sites), l.Holder)
	}
	return fine(check, "%d sites of process %d, which has ended", len(l.Sites), l.Holder).
		warn(fmt.Sprintf("kprobe detach --guest %s takes them out", t.Machine().Spec()))
}
