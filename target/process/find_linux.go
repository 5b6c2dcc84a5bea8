package process

import (
	"bytes"
	"fmt"
	"os"

	"kprobes.dev/kprobes/internal/symbol"
)

// Find says why no file is found that an object which is not mapped can come from.
func (t *Target) Find(name string) error {
	dir := fmt.Sprintf("/proc/%d", t.p.PID())
	o := symbol.ObjectSearch{Root: dir + "/root"}
	for _, m := range t.Space().Modules() {
		o.Mapped = append(o.Mapped, m.Image.Path())
	}
	env, _ := os.ReadFile(dir + "/environ") // who may trace may read it, unless it is gone
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if path, ok := bytes.CutPrefix(v, []byte("LD_LIBRARY_PATH=")); ok {
			o.Library = string(path)
		}
	}
	return o.Find(name)
}

// File implements target.Finder, in what is the process's root directory.
func (t *Target) File(name string) (string, error) {
	return symbol.RegularFile(fmt.Sprintf("/proc/%d/root", t.p.PID()), name)
}
