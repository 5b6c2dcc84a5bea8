package kernel

import (
	"cmp"
	"slices"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
)

// ftraceSites reads where the function tracer patches code: its records, a list of arrays
// (kernel/trace/ftrace.c). known is false if the kernel has none.
func (k *Kernel) ftraceSites() (ips []uint64, known bool, err error) {
	start, ok := k.Addr("ftrace_pages_start")
	if !ok {
		return nil, false, nil
	}
	t, err := k.Types()
	if err != nil {
		return nil, false, err
	}
	pg, rec := &offsets{t: t, typ: "ftrace_page"}, &offsets{t: t, typ: "dyn_ftrace"}
	next, records, index, ip := pg.of("next"), pg.of("records"), pg.of("index"), rec.of("ip")
	size, err := t.Size("dyn_ftrace")
	if err := cmp.Or(pg.err, rec.err, err); err != nil {
		return nil, false, err
	}
	const most, mostPages = 1 << 21, 1 << 16
	at, err := k.u64(start)
	for pages := 0; err == nil && at != 0; pages++ {
		n, err1 := k.u32(at + index)
		from, err2 := k.u64(at + records)
		if err = cmp.Or(err1, err2); err != nil {
			break
		}
		if pages == mostPages || uint64(n) > uint64(most-len(ips)) {
			return nil, false, errno.Errorf(syscall.EAGAIN, "the function tracer has more than %d records, or %d arrays of them: they are damaged or were caught changing", most, mostPages)
		}
		var b []byte
		if b, err = k.bytes(from, uint64(n)*uint64(size), maxTable, "the function tracer's records"); err != nil {
			break
		}
		for i := 0; i+size <= len(b); i += size {
			if va := le64(b, i+int(ip)); va != 0 {
				ips = append(ips, va)
			}
		}
		at, err = k.u64(at + next)
	}
	if err != nil {
		return nil, false, errno.Errorf(syscall.EAGAIN, "the function tracer's records: %w", err)
	}
	slices.Sort(ips)
	return ips, true, nil
}
