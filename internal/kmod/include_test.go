package kmod

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Many ask for the headers at once, and each finds all of them, from the first moment on.
func TestKeepHeaders(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	var all sync.WaitGroup
	dirs := make([]string, 8)
	for i := range dirs {
		all.Go(func() {
			dir, err := KeepHeaders(cache)
			if err != nil {
				t.Error(err)
				return
			}
			dirs[i] = dir
			err = fs.WalkDir(Headers(), ".", func(name string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				want, err := fs.ReadFile(Headers(), name)
				if err != nil {
					return err
				}
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
					t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(want), err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, dir := range dirs {
		if dir != dirs[0] {
			t.Errorf("%s, and %s", dir, dirs[0])
		}
	}
	if left, err := filepath.Glob(cache + "/*"); err != nil || len(left) != 1 {
		t.Errorf("left: %q, %v", left, err)
	}
}
