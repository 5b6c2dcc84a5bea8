package kernel

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"kprobes.dev/kprobes/internal/btf"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/phys"
	"kprobes.dev/kprobes/internal/interval"
)

// lowestText is where the kernel's image may be mapped at the lowest (__START_KERNEL_map).
const lowestText = 0xffffffff80000000

// Kernel is a Linux kernel in physical memory, of one boot.
type Kernel struct {
	mem    phys.Memory
	root   uint64 // physical address of init_top_pgt
	levels int
	layout string
	image  interval.Range // _text to the end of the kernel's last symbol
	phys   uint64         // physical address of _text
	banner string
	syms   []Symbol
	fixed  []fixed // words that do not change until a reboot

	namesOnce sync.Once
	names     map[string]int32

	typesOnce sync.Once
	types     *Types
	typesErr  error

	funcTypesOnce sync.Once
	funcTypes     *btf.Spec
	funcTypesErr  error

	taskOnce sync.Once
	task     *taskLayout
	taskErr  error

	placesMu sync.Mutex

	preemptOnce sync.Once
	preempt     []interval.Range // see preempting

	places *Places

	switchedMu sync.Mutex
	switched   uint64 // see switchedAt; 0: not known
}

// fixed is a word of memory that stays as it is for one boot.
type fixed struct {
	what string
	pa   uint64
	want uint64
}

// AmbiguousError says that RAM holds several kernels: one that runs and what others left
// behind, intact. Kernel.Owns with a CPU's CR3 tells which runs.
type AmbiguousError struct{ Kernels []*Kernel }

// Error names them.
func (e *AmbiguousError) Error() string {
	var at []string
	for _, k := range e.Kernels {
		at = append(at, fmt.Sprintf("%s at physical 0x%x", k.Release(), k.phys))
	}
	return fmt.Sprintf("%d kernels are in the guest's memory (%s): all but one were left by a reboot or kexec; a CPU's page table tells which one runs", len(e.Kernels), strings.Join(at, ", "))
}

// Is makes it answer to EEXIST.
func (e *AmbiguousError) Is(target error) bool { return target == syscall.EEXIST }

// Find finds the running kernel in a guest's memory, and reads its symbols. Nothing else is
// needed: the place is found by the shape of the kallsyms tables, and checked by reading
// symbols back through the page tables. Errors: EAGAIN if no kernel has come up yet (its
// firmware, boot loader or decompressor runs; it initialises), an *AmbiguousError (EEXIST)
// if several are there, EINVAL if one is there that can not be used, with the reason: while one is
// being unpacked over another it may look so.
//
// A kernel found may be one that ran before a reset, if the next has not come up: RAM
// outlives a reset. Kernel.Owns tells.
func Find(m phys.Memory) (*Kernel, error) {
	all, err := FindAll(m)
	if len(all) == 0 {
		return nil, err
	}
	if len(all) > 1 {
		return nil, &AmbiguousError{all}
	}
	return all[0], nil
}

// FindAll finds all kernels whose tables and page tables stand in memory, at most 16. The
// error says why there is none.
func FindAll(m phys.Memory) ([]*Kernel, error) {
	const most = 16
	var found []*Kernel
	var why error
	for _, r := range m.Ranges() {
		ram := m.Bytes(r.Start, int(r.End-r.Start))
		for at := 0; ; {
			i := bytes.Index(ram[at:], digits)
			if i < 0 || len(found) == most {
				break
			}
			k, err := kernelAt(m, r.Start, ram, at+i)
			if err == nil {
				found = append(found, k)
			} else if why == nil || errPriority(err) > errPriority(why) {
				why = err
			}
			at += i + len(digits)
		}
	}
	if why == nil {
		why = errno.Errorf(syscall.EAGAIN, "no Linux kernel in the guest's memory: it has not been started or unpacked yet, or has no CONFIG_KALLSYMS, or its memory is encrypted")
	}
	return found, why
}

// errPriority prefers to tell of a kernel that can not be used to telling of bytes that only
// look like one.
func errPriority(err error) int {
	if e, ok := err.(*findError); ok {
		return e.step
	}
	return 0
}

// findError says at which step a kernel proved not to be one.
type findError struct {
	step int
	error
}

// Unwrap gives the cause.
func (e *findError) Unwrap() error { return e.error }

// kernelAt tries to read a kernel whose token table has its digits at an index into RAM.
func kernelAt(m phys.Memory, start uint64, ram []byte, at int) (*Kernel, error) {
	var why error = &findError{1, errno.Errorf(syscall.EAGAIN, "no kernel's symbols: the table of tokens at physical 0x%x is not whole", start+uint64(at))}
	for _, align := range []int{8, 4} {
		t, ok := tokensAt(ram, at, align)
		if !ok {
			continue
		}
		err := t.locate()
		if err == nil {
			return kernelOf(m, start, &t)
		}
		why = &findError{2, errno.Errorf(syscall.EINVAL, "kallsyms at physical 0x%x: %w", start+uint64(at), err)}
	}
	return nil, why
}

// kernelOf reads the kernel whose tables lie in the range of RAM that begins at start.
func kernelOf(m phys.Memory, start uint64, t *tables) (*Kernel, error) {
	k := &Kernel{mem: m, layout: t.tokenLayout}
	if err := k.anchor(t, start); err != nil {
		return nil, &findError{3, err}
	}
	if err := k.verify(); err != nil {
		return nil, &findError{4, err}
	}
	return k, nil
}

const bannerStart = "Linux version "

// anchor finds where the image lies: physically by its banner, and virtually.
func (k *Kernel) anchor(t *tables, start uint64) error {
	var err error
	if k.syms, err = t.symbols(); err != nil {
		return errno.Errorf(syscall.EINVAL, "kallsyms: %w", err)
	}
	for _, name := range []string{"linux_banner", "init_top_pgt", "_text"} {
		if _, ok := k.Addr(name); !ok {
			return errno.Errorf(syscall.EINVAL, "the guest's kernel has %d symbols, but no %s: it lacks CONFIG_KALLSYMS_ALL", len(k.syms), name)
		}
	}
	if t.mode == modePC {
		return k.anchorPC(t, start)
	}
	banner, _ := k.Addr("linux_banner")
	text, _ := k.Addr("_text")
	const far = 64 << 20 // .rodata is smaller
	near := start + uint64(t.tokenTable)
	k.image.Start = text
	size := k.imageEnd() - text
	for pa := (near-min(near, far))&^(largePage-1) + banner%largePage; pa < near+far; pa += largePage {
		image := pa - (banner - text)
		if near-image >= size { // another kernel's banner: these tables are not in its image
			continue
		}
		if b := k.mem.Bytes(pa, len(bannerStart)); string(b) == bannerStart && k.mapAt(image, text) {
			return nil
		}
	}
	return errno.Errorf(syscall.EAGAIN, "a kernel's symbols are at physical 0x%x, but no page tables that map it: it is being unpacked or started, or was overwritten since it ran", near)
}

// anchorPC does the same where symbols are relative to the table itself: the physical
// addresses are known, the virtual ones come from the page tables.
func (k *Kernel) anchorPC(t *tables, start uint64) error {
	table := start + uint64(t.offsets)
	text, _ := k.Addr("_text")
	banner, _ := k.Addr("linux_banner")
	pa := table + text
	if string(k.mem.Bytes(table+banner, len(bannerStart))) == bannerStart {
		for va := uint64(lowestText); va < 0xffffffffc0000000; va += largePage {
			t.base = va + pa%largePage - text
			k.move(t)
			if k.mapAt(pa, va+pa%largePage) {
				return nil
			}
		}
	}
	return errno.Errorf(syscall.EAGAIN, "a kernel's symbols are at physical 0x%x, but no page tables that map it: it is being unpacked or started, or was overwritten since it ran", table)
}

// move takes the addresses anew from a table whose base has changed.
func (k *Kernel) move(t *tables) {
	for i := range k.syms {
		k.syms[i].Addr = t.addr(i)
	}
}

// mapAt says whether the page tables of an image at physical address pa map it at va, with
// either number of levels.
func (k *Kernel) mapAt(pa, va uint64) bool {
	top, _ := k.Addr("init_top_pgt")
	k.root, k.phys, k.image.Start = pa+(top-va), pa, va
	for k.levels = 4; k.levels <= 5; k.levels++ {
		if got, _, _, ok := k.Translate(va); ok && got == pa {
			return true
		}
	}
	return false
}

// landmarks are symbols of all sections of the image that outlive its start.
var landmarks = []string{
	"_stext", "linux_banner", "__start_rodata", "init_top_pgt", "init_task", "_sdata",
	"level3_kernel_pgt", "level2_kernel_pgt", "jiffies_64", "__bss_stop",
}

// verify reads landmarks back through the page tables, and sees that the kernel is up.
func (k *Kernel) verify() error {
	seen := 0
	for _, name := range landmarks {
		va, ok := k.Addr(name)
		if !ok {
			continue
		}
		seen++
		if name == "__bss_stop" {
			va--
		}
		pa, _, _, ok := k.Translate(va)
		if want := va - k.image.Start + k.phys; !ok || pa != want {
			return errno.Errorf(syscall.EAGAIN, "a kernel is at physical 0x%x, but its page tables do not map %s (0x%x) to its place: it is being started, or was overwritten since it ran", k.phys, name, va)
		}
	}
	if seen < 4 {
		return errno.Errorf(syscall.EINVAL, "the guest's kernel has too few symbols to be sure of it (%d of %d landmarks): it lacks CONFIG_KALLSYMS_ALL", seen, len(landmarks))
	}
	if err := k.readBanner(); err != nil {
		return err
	}
	if err := k.up(); err != nil {
		return err
	}
	k.remember()
	return nil
}

func (k *Kernel) readBanner() error {
	va, _ := k.Addr("linux_banner")
	s, err := k.cstring(va, 512)
	if err != nil || !strings.HasPrefix(s, bannerStart) {
		return errno.Errorf(syscall.EAGAIN, "a kernel is at physical 0x%x, but its banner can not be read", k.phys)
	}
	k.banner = strings.TrimRight(s, "\n")
	return nil
}

// up says whether the kernel has started: its code and page tables are final, and its init memory freed.
func (k *Kernel) up() error {
	const freeingInitmem = 2 // enum system_states (include/linux/kernel.h); until 5.14 SYSTEM_RUNNING
	va, ok := k.Addr("system_state")
	if !ok {
		return nil
	}
	state, err := k.u32(va)
	starts := err != nil || state < freeingInitmem
	if !starts && state == freeingInitmem {
		running, err := k.Enum("system_states", "SYSTEM_RUNNING")
		starts = err == nil && running > uint64(state)
	}
	if starts {
		return errno.Errorf(syscall.EAGAIN, "kernel %s is still starting (system_state %d): try again in a moment", k.Release(), state)
	}
	return nil
}

// remember notes words that another boot will most likely have otherwise.
func (k *Kernel) remember() {
	for _, name := range []string{
		"linux_banner", "page_offset_base", "vmalloc_base", "vmemmap_base", "saved_command_line",
		"__per_cpu_offset", "level3_kernel_pgt",
	} {
		off := uint64(0)
		if name == "level3_kernel_pgt" {
			off = 510 * 8
		}
		if va, ok := k.Addr(name); ok {
			k.fix(name, va+off)
		}
	}
	k.fix("init_top_pgt", k.image.Start+(k.root-k.phys)+511*8)
}

func (k *Kernel) fix(what string, va uint64) {
	pa := va - k.image.Start + k.phys
	if w, ok := phys64(k.mem, pa); ok {
		k.fixed = append(k.fixed, fixed{what, pa, w})
	}
}

// Check says whether the same kernel still stands where it was found: words that differ from
// boot to boot are what they were. It takes a microsecond. The error is ESTALE. A reset of
// the machine shows only when the memory is written anew: see Kernel.Owns.
func (k *Kernel) Check() error {
	for _, f := range k.fixed {
		if w, ok := phys64(k.mem, f.pa); !ok || w != f.want {
			return errno.Errorf(syscall.ESTALE, "the guest has started another kernel since kernel %s was found: %s is 0x%x and was 0x%x", k.Release(), f.what, w, f.want)
		}
	}
	return nil
}
