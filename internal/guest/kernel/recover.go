package kernel

import (
	"cmp"
	"slices"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// Foreign is what the guest's own kprobes have written over its code.
type Foreign struct {
	interval.Range
	Was []byte // what stood there
}

// Kprobes lists where the guest's own kprobes have patched its code just now: breakpoints
// (1 byte) and the jumps of optimised ones (5 bytes), sorted. Those on the function tracer
// patch nothing of their own. Errors: no types (ENOENT); a list that is damaged or was caught
// changing (EAGAIN).
func (k *Kernel) Kprobes() ([]Foreign, error) {
	tab, ok := k.Addr("kprobe_table")
	if !ok {
		return nil, nil
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	l, err := newKprobeLayout(t)
	if err != nil {
		return nil, err
	}
	i, _ := symbolAt(k.syms, tab)
	const usual, most = 64, 1 << 16 // KPROBE_TABLE_SIZE, kprobes that are walked
	buckets := min((end(k.syms, i)-tab)/8, usual)
	var out []Foreign
	n := 0
	for b := range buckets {
		at, err := k.u64(tab + 8*b)
		for err == nil && at != 0 {
			if n++; n > most {
				return nil, errno.Errorf(syscall.EAGAIN, "the table of kprobes is damaged or was caught changing: more than %d", most)
			}
			if f, ok := k.foreign(l, at-l.hlist); ok {
				out = append(out, f)
			}
			at, err = k.u64(at)
		}
		if err != nil {
			return nil, errno.Errorf(syscall.EAGAIN, "the table of kprobes is damaged or was caught changing: %w", err)
		}
	}
	slices.SortFunc(out, func(a, b Foreign) int { return cmp.Compare(a.Start, b.Start) })
	return out, nil
}

// kprobeLayout is where struct kprobe and struct optimized_kprobe have their members.
type kprobeLayout struct{ hlist, addr, opcode, flags, copied, insn uint64 }

func newKprobeLayout(t *Types) (kprobeLayout, error) {
	p := &offsets{t: t, typ: "kprobe"}
	l := kprobeLayout{hlist: p.of("hlist"), addr: p.of("addr"), opcode: p.of("opcode"), flags: p.of("flags")}
	o := &offsets{t: t, typ: "optimized_kprobe"}
	if _, err := t.Size("optimized_kprobe"); err == nil { // CONFIG_OPTPROBES
		l.copied, l.insn = o.of("optinsn.copied_insn"), o.of("optinsn.insn")
	}
	return l, cmp.Or(p.err, o.err)
}

// foreign tells what one kprobe has patched; ok is false if nothing.
func (k *Kernel) foreign(l kprobeLayout, kp uint64) (f Foreign, ok bool) {
	const optimized, jump, int3 = 4, 0xe9, 0xcc // KPROBE_FLAG_OPTIMIZED (include/linux/kprobes.h)
	addr, err1 := k.u64(kp + l.addr)
	flags, err2 := k.u32(kp + l.flags)
	was := make([]byte, 5)
	var now [5]byte
	if cmp.Or(err1, err2, k.Read(kp+l.opcode, was[:1]), k.Read(addr, now[:])) != nil {
		return f, false
	}
	if now[0] == int3 {
		return Foreign{interval.Range{Start: addr, End: addr + 1}, was[:1]}, true
	}
	if now[0] != jump || flags&optimized == 0 || l.copied == 0 {
		return f, false
	}
	to, err := k.u64(kp + l.insn)
	if err != nil || to != relative(addr, now[:], 1)+4 || k.Read(kp+l.copied, was[1:]) != nil {
		return f, false
	}
	return Foreign{interval.Range{Start: addr, End: addr + 5}, was}, true
}

// Recover puts back, in a copy of live code that begins at lo, what stood where the guest's
// own kprobes have patched it. It gives the ranges, sorted, that somebody else has patched:
// they must be left alone. Calls into the function tracer stay as they are (FtraceSite).
func (k *Kernel) Recover(lo uint64, code []byte) ([]interval.Range, error) {
	all, err := k.Kprobes()
	if err != nil {
		return nil, err
	}
	hi := lo + uint64(len(code))
	var out []interval.Range
	for _, f := range all {
		if !f.Overlaps(interval.Range{Start: lo, End: hi}) {
			continue
		}
		for i, c := range f.Was {
			if at := f.Start + uint64(i); at >= lo && at < hi {
				code[at-lo] = c
			}
		}
		out = append(out, f.Range)
	}
	return out, nil
}
