package self

import (
	"os"

	"kprobes.dev/kprobes/internal/symbol"
)

// Find says why no file is found that an object which is not mapped can come from.
func (t *Target) Find(name string) error {
	o := symbol.ObjectSearch{Library: os.Getenv("LD_LIBRARY_PATH")}
	for _, m := range t.Space().Modules() {
		o.Mapped = append(o.Mapped, m.Image.Path())
	}
	return o.Find(name)
}

// File implements target.Finder.
func (t *Target) File(name string) (string, error) { return symbol.RegularFile("/", name) }
