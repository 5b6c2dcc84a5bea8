package guest

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// module is a module of the kernel as it was found.
type module struct {
	*kernel.Module
	im *symbol.Image
}

// Refresh looks at which modules the kernel has.
func (t *Target) Refresh() (changed bool, err error) {
	if err := t.alive(); err != nil {
		return false, err
	}
	v, err := t.k.ModulesVersion()
	if err != nil {
		return false, err
	}
	if t.Space() != nil && v == t.version {
		return false, nil
	}
	mods, err := t.k.Modules()
	if err != nil {
		return false, err
	}
	space := symbol.NewSpace()
	space.Add(t.image, 0, mainName)
	now := map[uint64]*module{}
	for _, f := range mods {
		m, err := t.module(f)
		if err != nil {
			return false, err
		}
		now[f.Struct] = m
		space.Add(m.im, 0, m.Name)
	}
	t.space.Store(space)
	t.mods, t.version = now, v
	return true, nil
}

// mainName is what MOD calls the kernel itself, as perf does.
const mainName = "vmlinux"

// module gives a module with its image, that of before if it is the same load of it.
func (t *Target) module(f *kernel.Module) (*module, error) {
	if m := t.mods[f.Struct]; m != nil && m.Name == f.Name && m.Text == f.Text {
		return m, nil
	}
	im, err := f.Image()
	return &module{f, im}, err
}

// FuncDenied says why nothing may stand in a function; "": something may.
func (t *Target) FuncDenied(r symbol.Resolved) string {
	p, err := t.k.Places()
	if err != nil {
		return err.Error()
	}
	lo := r.Module.Runtime(r.Func.Addr)
	return p.FuncDenied(lo, lo+r.Func.Size)
}

// Notrace says why an event may not stand in a function, though a probe with handlers may: as
// the kernel, which wants those that it can trace.
func (t *Target) Notrace(r symbol.Resolved) error {
	p, err := t.k.Places()
	if err != nil || p.Traced(r.Module.Runtime(r.Func.Addr), r.Func.Size) {
		return err
	}
	return errno.Errorf(unix.EINVAL, "%s is a notrace function", r.Func.Name)
}

// Describe completes what the analysis of a function of the kernel is given.
func (t *Target) Describe(_ symbol.Resolved, f *arch.Func) error {
	p, err := t.k.Places()
	if err != nil {
		return err
	}
	if err := t.describe(p, f, f.Addr, f.Code); err != nil {
		return err
	}
	for _, part := range f.Parts {
		if err := t.describe(p, f, part.Addr, part.Code); err != nil {
			return err
		}
	}
	if n, ok := p.FtraceSite(f.Addr); ok {
		f.Reserved = n
	}
	f.Returns, f.Tails = t.returns, true
	f.NoReturn = t.noReturn
	return nil
}

// describe adds what is known of a run of a function's code, and puts back in it what the
// guest's own kprobes have changed.
func (t *Target) describe(p *kernel.Places, f *arch.Func, lo uint64, code []byte) error {
	foreign, err := t.k.Recover(lo, code)
	if err != nil {
		return err
	}
	for _, r := range foreign {
		f.Keep = append(f.Keep, interval.Range{Start: r.Start, End: r.End})
	}
	hi := lo + uint64(len(code))
	for _, kept := range p.Kept(lo, hi) {
		f.Keep = append(f.Keep, interval.Range{Start: kept.Start, End: kept.End})
	}
	f.Entries = append(f.Entries, p.Entries(lo, hi)...)
	return nil
}

// returns says whether a jump to an address is a return.
func (t *Target) returns(addr uint64) bool {
	return strings.HasSuffix(t.nameAt(addr), "_return_thunk")
}

// noReturn says whether a function never returns to its caller.
func (t *Target) noReturn(addr uint64) bool { return noReturn[t.nameAt(addr)] }

// noReturn are functions of the kernel that never return (tools/objtool/noreturns.h). One that
// is missing only makes the analysis follow code that is never run.
var noReturn = map[string]bool{
	"panic": true, "nmi_panic": true, "do_exit": true, "do_group_exit": true, "make_task_dead": true, "__stack_chk_fail": true,
	"__module_put_and_kthread_exit": true, "kthread_exit": true, "kthread_complete_and_exit": true, "rewind_stack_and_make_dead": true,
	"fortify_panic": true, "__fortify_panic": true, "stop_this_cpu": true, "machine_real_restart": true, "cpu_startup_entry": true,
	"do_task_dead": true, "x86_64_start_kernel": true, "start_kernel": true, "rest_init": true, "arch_call_rest_init": true,
	"usercopy_abort": true, "__reiserfs_panic": true, "xen_start_kernel": true, "sev_es_terminate": true, "snp_abort": true,
	"ex_handler_msr_mce": true, "mce_panic": true, "play_dead": true, "native_play_dead": true, "hlt_play_dead": true,
}

func (t *Target) nameAt(addr uint64) string {
	l, ok := t.Space().SymbolAt(addr)
	if !ok || l.Off != 0 {
		return ""
	}
	return l.Name
}

// Alive says whether the kernel still runs that was found.
func (t *Target) Alive() error { return t.alive() }

// InsnDenied says why no probe may stand at an instruction.
func (t *Target) InsnDenied(addr uint64) error {
	p, err := t.k.Places()
	if err != nil {
		return err
	}
	for _, k := range p.Kept(addr, addr+1) {
		return errno.Errorf(unix.EINVAL, "%s", k.Why)
	}
	own, err := t.k.Kprobes()
	for _, k := range own {
		if k.Contains(addr) {
			return errno.Errorf(unix.EBUSY, "a kprobe of the guest's own stands there")
		}
	}
	return err
}

// errAddress says that the kernel has nothing at an address.
var errAddress = errors.New("not an address of the guest's kernel")

// physical translates an address of the kernel.
func physical(k *kernel.Kernel, va uint64) (uint64, error) {
	if pa, _, _, ok := k.Translate(va); ok {
		return pa, nil
	}
	return 0, fmt.Errorf("0x%x: %w", va, errAddress)
}
