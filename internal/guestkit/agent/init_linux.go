package agent

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// mounts are the file systems of a guest, in order. What its kernel was built without is not
// mounted.
var mounts = []struct{ kind, at string }{
	{"proc", "/proc"},
	{"sysfs", "/sys"},
	{"devtmpfs", "/dev"},
	{"tmpfs", "/tmp"},
	{"tracefs", "/sys/kernel/tracing"},
	{"debugfs", "/sys/kernel/debug"},
}

// Init is a guest's first process: it mounts file systems, brings the loopback interface up
// and serves requests. When it can not it says so on the console and ends the guest.
func Init() {
	err := prepare()
	if err == nil {
		err = Serve(Port)
	}
	fmt.Fprintln(os.Stderr, "agent:", err)
	time.Sleep(time.Second) // the console's lines are on their way
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func prepare() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.at, 0o755); err != nil && !errors.Is(err, unix.EPERM) {
			return err // EPERM: sysfs has no such directory
		}
		err := unix.Mount(m.kind, m.at, m.kind, 0, "")
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return loopback()
}

// loopback brings lo up; the kernel gives it 127.0.0.1 by itself only if told, so this does.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := r.SetInet4Addr([]byte{127, 0, 0, 1}); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, r); err != nil {
		return fmt.Errorf("address of lo: %w", err)
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	return nil
}
