package kernel

import (
	"cmp"
	"fmt"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// maxTable bounds the bytes of one table.
const maxTable = 64 << 20

// tableReader collects what the tables beside the code say. The first error sticks.
type tableReader struct {
	k       *Kernel
	kept    []Kept
	entries []uint64
	err     error
}

func (r *tableReader) keep(at, n uint64, why string) {
	r.kept = append(r.kept, Kept{interval.Range{Start: at, End: at + n}, why})
}

// table is one of the kinds of tables: entries of a fixed size.
type table struct {
	name string
	size uint64
	take func(r *tableReader, at uint64, b []byte)
}

// The tables. All numbers are relative to their own places (include/asm-generic/extable.h,
// include/linux/jump_label.h, static_call_types.h, asm-generic/bug.h).
var (
	exTable     = table{"__ex_table", 12, (*tableReader).exception}
	jumpTable   = table{"__jump_table", 16, (*tableReader).jumpLabel}
	staticCalls = table{"static_call_sites", 8, (*tableReader).staticCall}
	bugTable    = table{"__bug_table", 12, (*tableReader).bug}
	smpLocks    = table{"smp_locks", 4, (*tableReader).smpLock}
)

// relative adds a 32-bit number to its own address.
func relative(at uint64, b []byte, i int) uint64 {
	return at + uint64(i) + uint64(int64(int32(le32(b, i))))
}

// read takes a table of some bytes at an address.
func (r *tableReader) read(t table, at, n uint64) {
	if r.err != nil || n == 0 {
		return
	}
	if n%t.size != 0 {
		r.err = errno.Errorf(syscall.EINVAL, "%s at 0x%x: %d bytes are no whole number of entries of %d", t.name, at, n, t.size)
		return
	}
	b, err := r.k.bytes(at, n, maxTable, t.name)
	if err != nil {
		r.err = err
		return
	}
	for i := uint64(0); i < n; i += t.size {
		t.take(r, at+i, b[i:i+t.size])
	}
}

// ownTables reads the kernel's own.
func (r *tableReader) ownTables() {
	for _, t := range []struct {
		table
		start, end string
	}{
		{exTable, "__start___ex_table", "__stop___ex_table"},
		{jumpTable, "__start___jump_table", "__stop___jump_table"},
		{staticCalls, "__start_static_call_sites", "__stop_static_call_sites"},
		{r.bugs(), "__start___bug_table", "__stop___bug_table"},
	} {
		if span, ok := r.k.between(t.start, t.end); ok {
			r.read(t.table, span.Start, span.End-span.Start)
		}
	}
}

// bugs is bugTable with the size that the kernel was configured for.
func (r *tableReader) bugs() table {
	t := bugTable
	if n, err := r.k.Size("bug_entry"); err == nil && n >= 4 {
		t.size = uint64(n)
	}
	return t
}

// moduleTables reads a module's.
func (r *tableReader) moduleTables(m *Module) {
	l := &m.lay
	for _, t := range []struct {
		table
		at, num uint64
	}{
		{exTable, l.extable, l.numExtable},
		{jumpTable, l.jumps, l.numJumps},
		{staticCalls, l.statics, l.numStatics},
		{r.bugs(), l.bugs, l.numBugs},
	} {
		if t.at == 0 || t.num == 0 {
			continue
		}
		at, err1 := r.k.u64(m.Struct + t.at)
		n, err2 := r.k.u32(m.Struct + t.num)
		if err := cmp.Or(err1, err2); err != nil {
			r.err = cmp.Or(r.err, fmt.Errorf("module %s: %w", m.Name, err))
			return
		}
		r.read(t.table, at, uint64(n)*t.size)
	}
}

// exception: a fault in the instruction goes on at the fix-up.
func (r *tableReader) exception(at uint64, b []byte) {
	r.keep(relative(at, b, 0), 1, "a fault in it has a fix-up (__ex_table)")
	r.entries = append(r.entries, relative(at, b, 4))
}

func (r *tableReader) jumpLabel(at uint64, b []byte) {
	const inInit = 2 // jump_entry_is_init: the code was freed, another's may be there now
	code := relative(at, b, 0)
	var insn [1]byte
	if b[8]&inInit != 0 || r.k.Read(code, insn[:]) != nil {
		return
	}
	n := uint64(5)
	if insn[0] == 0xeb || insn[0] == 0x66 {
		n = 2
	}
	r.keep(code, n, "the kernel patches it: a jump label")
	r.entries = append(r.entries, relative(at, b, 4))
}

func (r *tableReader) staticCall(at uint64, b []byte) {
	const inInit = 2 // STATIC_CALL_SITE_INIT
	code := relative(at, b, 0)
	if relative(at, b, 4)&inInit != 0 {
		return
	}
	n := uint64(5)
	var insn [2]byte
	if r.k.Read(code, insn[:]) == nil && insn[0] == 0x0f && insn[1]&0xf0 == 0x80 {
		n = 6 // a conditional tail call
	}
	r.keep(code, n, "the kernel patches it: a static call")
}

func (r *tableReader) bug(at uint64, b []byte) {
	r.keep(relative(at, b, 0), 2, "the kernel knows it by its address: BUG or WARN")
}

func (r *tableReader) smpLock(at uint64, b []byte) {
	r.keep(relative(at, b, 0), 1, "the kernel patches it when a second CPU comes up: a lock prefix")
}

// smpLocks reads the lock prefixes that were taken out because one CPU only is running. The
// kernel keeps a list of them as long as it may have to put them back
// (arch/x86/kernel/alternative.c).
func (r *tableReader) smpLocks() {
	head, ok := r.k.Addr("smp_alt_modules")
	if !ok || r.err != nil {
		return
	}
	t, err := r.k.Types()
	if err != nil {
		r.err = err
		return
	}
	o := &offsets{t: t, typ: "smp_alt_module"}
	next, locks, locksEnd := o.of("next"), o.of("locks"), o.of("locks_end")
	at, err := r.k.u64(head)
	err = cmp.Or(o.err, err)
	for n := 0; err == nil && at != head && r.err == nil; n++ {
		if n == maxModules {
			r.err = errno.Errorf(syscall.EAGAIN, "the list smp_alt_modules has more than %d entries", maxModules)
			return
		}
		lo, err1 := r.k.u64(at - next + locks)
		hi, err2 := r.k.u64(at - next + locksEnd)
		if err = cmp.Or(err1, err2); err == nil && hi > lo {
			r.read(smpLocks, lo, (hi-lo)&^3)
		}
		if err == nil {
			at, err = r.k.u64(at)
		}
	}
	r.err = cmp.Or(r.err, err)
}
