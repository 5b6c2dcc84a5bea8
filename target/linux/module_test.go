package linux

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestFindModule(t *testing.T) {
	root := fstest.MapFS{
		"sys/module/loaded/refcnt":         {},
		"lib/modules/6.1/modules.dep":      {Data: []byte("kernel/net/snd-seq.ko.xz: kernel/a.ko\nkernel/drivers/dummy.ko:\n")},
		"lib/modules/6.1/modules.builtin":  {Data: []byte("kernel/fs/ext4/ext4.ko\n")},
		"lib/modules/none/modules.builtin": {},
	}
	for _, name := range []string{"loaded", "snd_seq", "dummy", "ext4"} {
		if err := findModule(root, "6.1", name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := findModule(root, "6.1", "dumy")
	if !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), `no module "dumy" is loaded, and none can be; did you mean "dummy"?`) {
		t.Error(err)
	}
	if err := findModule(root, "none", "dumy"); err != nil {
		t.Errorf("the modules are not known, and one is refused: %v", err)
	}
}
