package self

import (
	"os"

	"kprobes.dev/kprobes/internal/libfind"
	"kprobes.dev/kprobes/internal/symbol"
)

// Find says why no file is found that an object which is not mapped can come from.
func (t *Target) Find(name string) error {
	p := libfind.Program{Library: os.Getenv("LD_LIBRARY_PATH"), Answers: symbol.Answers}
	for _, m := range t.Space().Modules() {
		p.Mapped = append(p.Mapped, m.Image.Path())
	}
	return p.Find(name)
}
