package symbol

import (
	"errors"
	"syscall"
	"testing"
)

// TestCalled asks real programs which of their functions a call enters.
func TestCalled(t *testing.T) {
	im := open(t, buildC(t, "static"), noDebug)
	for name, ok := range map[string]bool{"main": true, "malloc": true, "_start": false, "__restore_rt": false, "_dl_runtime_resolve_xsavec": false} {
		fns, err := im.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Called(fns[0]); (err == nil) != ok || err != nil && !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s: %v", name, err)
		}
	}
	main, err := im.Lookup("main")
	if err != nil {
		t.Fatal(err)
	}
	if err := im.Called(&Func{Addr: main[0].Addr + 1}); err == nil {
		t.Error("main+1 is no start of a function")
	}
}

// TestUnwinder looks for unwinders where they are and where they are not.
func TestUnwinder(t *testing.T) {
	for path, want := range map[string]struct{ find, hidden bool }{
		"/lib/x86_64-linux-gnu/libgcc_s.so.1":      {find: true},
		"/lib/x86_64-linux-gnu/libc.so.6":          {},
		"/usr/lib/x86_64-linux-gnu/libstdc++.so.6": {},
		redis:               {},
		buildC(t, "static"): {find: true},
	} {
		u := open(t, path, noDebug).Unwinder()
		if (u.FindFDE != nil) != want.find || u.Hidden != want.hidden || u.Other != "" {
			t.Errorf("%s: %+v", path, u)
		}
	}
}
