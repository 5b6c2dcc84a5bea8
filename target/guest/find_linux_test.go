package guest_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	gk "kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// TestEarlierKernel has a second kernel in memory, whole, as a boot leaves one behind that had
// another place: whoever attaches gets the one that runs, also where it can not ask.
func TestEarlierKernel(t *testing.T) {
	const reserved = 128 << 20
	g := testguest.Boot(t, &testguest.Options{CPUs: 1, Memory: 512, Append: "memmap=96M$128M"})
	m, err := qemu.Open(g.Spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := gk.Find(m)
	if err != nil {
		t.Fatal(err)
	}
	leaveCopy(t, m, k, reserved)
	var several *gk.AmbiguousError
	if _, err := gk.Find(m); !errors.As(err, &several) || len(several.Kernels) != 2 {
		t.Fatalf("with a copy: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	reader := func() (*guest.Target, error) {
		m, err := qemu.Open(g.Spec, &qemu.Options{Unlocked: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return guest.Attach(m, nil)
	}
	same := func(who string, x *guest.Target, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		if _, got := x.Kernel().Base(); got == reserved {
			t.Errorf("%s attaches to the copy", who)
		}
	}
	x, err := reader()
	for tries := 10; errors.As(err, &several) && tries > 0; tries-- { // QEMU of a busy machine did not answer in time
		x, err = reader()
	}
	same("a reader", x, err)
	p := attach(t, g, nil)
	same("a tracer", p.t, nil)
	if _, err := reader(); !errors.As(err, &several) {
		t.Errorf("a reader that can not ask, and nothing tells: %v", err)
	} else if len(several.Error()) == 0 {
		t.Error("nothing said")
	}
	p.add(nil, "p:here vfs_read")
	x, err = reader()
	same("a reader that can not ask", x, err)
	g.Hit("read", 10, 0)
	p.poll()
	if len(p.hits) < 10 {
		t.Errorf("%d hits", len(p.hits))
	}
}

// leaveCopy copies a kernel of a running guest to memory that the guest does not use, with page
// tables for that place, in which what does not belong to the image is lost.
func leaveCopy(t *testing.T, m *qemu.Machine, k *gk.Kernel, to uint64) {
	t.Helper()
	addr := func(name string) uint64 {
		va, ok := k.Addr(name)
		if !ok {
			t.Fatalf("no %s", name)
		}
		return va
	}
	const large, present, isLarge = 2 << 20, 0x63, 0x80 // a table's bits: present, writable, accessed, dirty
	va, pa := k.Base()
	size := int(addr("__bss_stop") - va)
	if free := m.Bytes(to, size+large); pa%large != 0 || to%large != 0 || free == nil {
		t.Fatalf("%d bytes from 0x%x to 0x%x", size, pa, to)
	}
	dst := m.Bytes(to, size)
	copy(dst, m.Bytes(pa, size))
	set := func(table string, i int, v uint64) {
		binary.LittleEndian.PutUint64(dst[addr(table)-va+uint64(8*i):], v)
	}
	at := func(table string) uint64 { return to + addr(table) - va }
	if _, levels := k.Root(); levels != 4 {
		t.Fatalf("%d levels", levels)
	}
	for i := range 511 {
		set("init_top_pgt", i, 0)
	}
	set("init_top_pgt", 511, at("level3_kernel_pgt")|present)
	set("level3_kernel_pgt", 510, at("level2_kernel_pgt")|present)
	for i := range (size + large - 1) / large {
		set("level2_kernel_pgt", int(va>>21&511)+i, to+uint64(i)*large|present|isLarge)
	}
}

// TestAttachBooting attaches again and again while the guest reboots: to a kernel, or there is
// none yet; what the boot before has left is none.
func TestAttachBooting(t *testing.T) {
	g := testguest.Boot(t, &testguest.Options{CPUs: 1})
	damaged := errors.New("what was read is damaged")
	reader, err := qemu.Open(g.Spec, &qemu.Options{Unlocked: true})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	old, err := guest.Attach(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := guest.UnlessEnded(reader, old.Kernel(), damaged); err != damaged {
		t.Errorf("a kernel that runs: %v", err)
	}
	up := make(chan struct{})
	go func() {
		defer close(up)
		g.Reboot()
	}()
	spec := g.Spec
	spec.Ring = "" // its device has no address while the firmware runs
	none := 0
	for end := false; !end; time.Sleep(20 * time.Millisecond) {
		select {
		case <-up:
			end = true
		default:
		}
		m, err := qemu.Open(spec, nil)
		if err != nil {
			t.Error(err)
			break
		}
		x, err := guest.Attach(m, nil)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) && !end { // EINVAL: it is being unpacked
			none++
		} else if err != nil {
			t.Error(err)
		}
		if end && x == nil {
			t.Errorf("no kernel after the reboot: %v", err)
		}
		if err := guest.UnlessEnded(m, old.Kernel(), damaged); end && !errors.Is(err, unix.EAGAIN) {
			t.Errorf("a kernel that has ended: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	<-up
	if none == 0 {
		t.Error("there was always a kernel")
	}
}
