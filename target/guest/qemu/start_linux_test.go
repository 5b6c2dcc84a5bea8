package qemu_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

func TestStartErrors(t *testing.T) {
	dir, err := os.MkdirTemp("", "k") // t.TempDir's paths are long for sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Setenv("TMPDIR", dir)
	kernel, _ := testguest.Image(t)
	tests := []struct {
		o    qemu.StartOptions
		want error
		text string
	}{
		{qemu.StartOptions{}, unix.EINVAL, "which kernel"},
		{qemu.StartOptions{Kernel: "/no/such"}, unix.ENOENT, "/no/such"},
		{qemu.StartOptions{Kernel: kernel, Initrd: "/no/initrd"}, unix.ENOENT, "/no/initrd"},
		{qemu.StartOptions{Kernel: kernel, Memory: 1}, unix.EINVAL, "1 MB"},
		{qemu.StartOptions{Kernel: kernel, CPUs: 1000}, unix.EINVAL, "1000 vCPUs"},
		{qemu.StartOptions{Kernel: kernel, Ring: 3}, unix.EINVAL, "power of two"},
		{qemu.StartOptions{Kernel: kernel, Accel: "xen"}, unix.EINVAL, "tcg or kvm"},
		{qemu.StartOptions{Kernel: kernel, Accel: "kvm", Icount: true}, unix.EINVAL, "counts instructions"},
		{qemu.StartOptions{Kernel: kernel, QEMU: "no-such-qemu"}, nil, "apt-get install qemu-system-x86"},
		{qemu.StartOptions{Kernel: kernel, CPUModel: "nosuch"}, unix.EINVAL, "unable to find CPU model 'nosuch'"},
		{qemu.StartOptions{Kernel: kernel, Dir: "/tmp/" + strings.Repeat("d", 100)}, unix.ENAMETOOLONG, "another directory"},
	}
	for _, c := range tests {
		spec, err := qemu.Start(&c.o)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, %v; want %v, %q", c.o, spec, err, c.want, c.text)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%+v: left behind: %v, %v", c.o, left, err)
		}
	}
}

func TestStartAndEnd(t *testing.T) {
	kernel, _ := testguest.Image(t)
	spec, err := qemu.Start(&qemu.StartOptions{Kernel: kernel, Memory: 64, Ring: -1})
	if err != nil {
		t.Fatal(err)
	}
	again, err := qemu.ParseSpec(spec.String())
	if err != nil || again != spec || spec.Ring != "" {
		t.Errorf("%+v, %v; want %+v", again, err, spec)
	}
	if _, err := qemu.Start(&qemu.StartOptions{Kernel: kernel, Dir: spec.Dir}); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second start there: %v, want EEXIST", err)
	}
	m, err := qemu.Open(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if pa, mem := m.Shared(); pa != 0 || mem != nil {
		t.Errorf("shared memory without a device: %d bytes at %#x", len(mem), pa)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	other := spec
	other.Memory = filepath.Join(t.TempDir(), "ram")
	if err := os.WriteFile(other.Memory, make([]byte, 64<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := qemu.Open(other, nil); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "backs") {
		t.Errorf("a file that is not the guest's memory: %v, want EINVAL", err)
	}
	if err := qemu.End(spec); err != nil {
		t.Error(err)
	}
	for _, gone := range []string{spec.Dir, spec.Memory} {
		if _, err := os.Stat(gone); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}
	if _, err := qemu.Open(spec, nil); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "share=on") {
		t.Errorf("open of nothing: %v, want ENOENT and what QEMU must be started with", err)
	}
	if err := qemu.End(qemu.Spec{QMP: "/a"}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("end of a QEMU of others: %v, want EINVAL", err)
	}
}

// TestAboveFour: a machine with RAM above 4 GB, where the file's offset is not the physical
// address. QEMU writes there, and the mapping shows it.
func TestAboveFour(t *testing.T) {
	kernel, _ := testguest.Image(t)
	for _, machine := range []string{"pc", "q35"} {
		spec, err := qemu.Start(&qemu.StartOptions{Kernel: kernel, Memory: 5 << 10, Extra: []string{"-machine", machine}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := qemu.End(spec); err != nil {
				t.Error(err)
			}
		}()
		m := firmwareDone(t, spec)
		defer m.Close()
		ranges := m.Ranges()
		top := ranges[len(ranges)-1]
		if top.Start != 4<<30 || top.End <= 5<<30 || m.Bytes(4<<30-16, 16) != nil {
			t.Errorf("%s: RAM at %#x", machine, ranges)
		}
		err = m.Stopped(func(s *qemu.Stop) error {
			return s.WriteAll([]qemu.Write{{PA: top.Start, Data: []byte("first")}, {PA: top.End - 4, Data: []byte("last")}})
		})
		if err != nil {
			t.Errorf("%s: %v", machine, err)
		}
	}
}

// firmwareDone opens a machine once its firmware has given the ivshmem device an address.
func firmwareDone(t *testing.T, spec qemu.Spec) *qemu.Machine {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		m, err := qemu.Open(spec, nil)
		if err == nil {
			return m
		}
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
