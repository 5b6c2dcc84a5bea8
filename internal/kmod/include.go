package kmod

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
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

// KeepHeaders gives a directory that has the headers, in one of a cache. Its name tells what is in it, so that it is written once, and others who use it, or other headers, do not
// see it change.
func KeepHeaders(cache string) (dir string, err error) {
	h := sha256.New()
	err = fs.WalkDir(Headers(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(Headers(), name)
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
		return err
	})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "include-"+hex.EncodeToString(h.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	made, err := os.MkdirTemp(cache, "include-new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(made)
	if err := WriteHeaders(made); err != nil {
		return "", err
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(made, dir); err != nil && !errors.Is(err, fs.ErrExist) { // somebody else was faster
		return "", err
	}
	return dir, nil
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
