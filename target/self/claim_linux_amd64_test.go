package self_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/procfs"
)

func init() { children["claim"] = claims }

// TestClaim: one engine holds the process. Another copy of the package in it has the lock by a file of
// its own; what a tracer that was killed has left is told by its mapping.
func TestClaim(t *testing.T) { child(t, "claim") }

func claims(c *kprobes.Core) error {
	k := &kprobes.Kprobe{SymbolName: own + "bump"}
	refused := func(words string) error {
		err := c.RegisterKprobe(k)
		if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("refused with %q: %w", words, err)
		}
		if n, err := ownMappings(procfs.OwnMap); n != 0 || err != nil {
			return fmt.Errorf("after a refusal the mark stands in %d mappings: %w", n, err)
		}
		return nil
	}
	other, err := os.Open("/proc/self/" + procfs.HoldFile)
	if err != nil {
		return err
	}
	if _, err := procfs.Hold(other); err != nil {
		return err
	}
	if err := refused("another copy of package"); err != nil {
		return err
	}
	if err := procfs.ReleaseHold(other); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate(procfs.TracerMap, unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	home, err := unix.Mmap(fd, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	if err := refused(fmt.Sprintf("kprobe detach -p %d", os.Getpid())); err != nil {
		return err
	}
	if err := unix.Munmap(home); err != nil {
		return err
	}

	if err := c.RegisterKprobe(k); err != nil {
		return fmt.Errorf("registered when nobody holds the process: %w", err)
	}
	if n, err := ownMappings(procfs.OwnMap); n != 1 || err != nil {
		return fmt.Errorf("the mark stands in %d mappings: %w", n, err)
	}
	f, err := os.Open("/proc/self/" + procfs.HoldFile)
	if err != nil {
		return err
	}
	defer f.Close()
	if pid, held, err := procfs.HeldBy(f); pid != os.Getpid() || !held || err != nil {
		return fmt.Errorf("held by %d, %v, %w", pid, held, err)
	}
	if err := c.Close(nil); err != nil {
		return err
	}
	if pid, held, err := procfs.HeldBy(f); held || err != nil {
		return fmt.Errorf("after Close held by %d, %v, %w", pid, held, err)
	}
	if n, err := ownMappings(procfs.OwnMap); n != 0 || err != nil {
		return fmt.Errorf("after Close the mark stands in %d mappings: %w", n, err)
	}
	return nil
}

// ownMappings counts the process's own mappings of memory files of a name.
func ownMappings(name string) (n int, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	maps, err := procfs.ParseMaps(text)
	for _, m := range maps {
		if strings.HasPrefix(m.Path, "/memfd:"+name) {
			n++
		}
	}
	return n, err
}
