package kmod

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed include
var embedded embed.FS

// Headers are the headers that modules are compiled with: linux/module.h and others.
func Headers() fs.FS {
	sub, err := fs.Sub(embedded, "include")
	if err != nil {
		panic(err) // the name is that of the line above
	}
	return sub
}

// WriteHeaders writes the headers to a directory.
func WriteHeaders(dir string) error {
	return fs.WalkDir(Headers(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(Headers(), name)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	})
}
