package self_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/modules"
)

func init() { children["modules"] = withModules }

// TestCloseModules: Close takes out modules that are loaded, with all that they need.
func TestCloseModules(t *testing.T) { child(t, "modules") }

// countsBump counts calls of bump.
const countsBump = `
#include <linux/kernel.h>
#include <linux/kprobes.h>
#include <linux/module.h>
static unsigned long calls;
static int before(struct kprobe *p, struct pt_regs *regs)
{
	if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 1000 == 0)
		pr_info("a thousand more\n");
	return 0;
}
static struct kprobe kp = {.symbol_name = "` + own + `bump", .pre_handler = before};
static int __init start(void) { return register_kprobe(&kp); }
static void __exit end(void) { unregister_kprobe(&kp); }
module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
`

func withModules(c *kprobes.Core) error {
	object, err := modules.Compile("bumps", []byte(countsBump))
	if err != nil {
		return err
	}
	before, err := present()
	if err != nil {
		return err
	}
	for i := range 3 {
		if i > 0 {
			if c, err = openOwn(); err != nil {
				return fmt.Errorf("attached anew: %w", err)
			}
		}
		if err := closeLoaded(c, object); err != nil {
			return err
		}
		c = nil // the collector closes the files that it has open
		after, err := settled(before)
		if err == nil {
			err = before.differs(after)
		}
		if err != nil {
			return fmt.Errorf("after %d of 3: %w", i+1, err)
		}
		if maps, err := os.ReadFile("/proc/self/maps"); err != nil || slices.ContainsFunc(strings.Split(string(maps), "\n"), isLow) {
			return fmt.Errorf("left where modules lie: %w\n%s", err, maps)
		}
	}
	return nil
}

// isLow says whether a line of /proc/self/maps is of memory in the upper half of the first 2 GB.
func isLow(line string) bool {
	var lo, hi uint64
	_, err := fmt.Sscanf(line, "%x-%x", &lo, &hi)
	return err == nil && lo >= 1<<30 && hi <= 1<<31
}

// closeLoaded closes a Core while a module is loaded.
func closeLoaded(c *kprobes.Core, object []byte) error {
	table, err := modules.Of(c)
	if err != nil {
		return err
	}
	m, err := table.Insert("bumps", bytes.NewReader(object))
	if err != nil {
		return err
	}
	const calls = 5000
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range calls {
				_ = bump(1, 2)
			}
		})
	}
	wg.Wait()
	if err := c.Close(func(h *kprobes.Hit) { err = fmt.Errorf("%s is given out as a hit", h.Event.Name) }); err != nil {
		return err
	}
	n := 0
	for range table.Lines(ended{}) {
		n++
	}
	if n != 4*calls/1000 {
		err = errors.Join(err, fmt.Errorf("%d lines, want %d", n, 4*calls/1000))
	}
	if m.Remove() == nil {
		err = errors.Join(err, errors.New("a module was removed that Close has taken out"))
	}
	return err
}

// ended is a context that is done.
type ended struct{}

func (ended) Done() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
