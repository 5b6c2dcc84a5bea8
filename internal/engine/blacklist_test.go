package engine

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// TestBlacklistedError: a function on the blacklist answers EINVAL with the reason.
func TestBlacklistedError(t *testing.T) {
	c := &Core{scan: &codescan.Scanner{}}
	err := c.blacklisted(symbol.Resolved{Func: &symbol.Func{Name: "runtime.goexit", Lang: symbol.LangGo}})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "every goroutine returns to") {
		t.Errorf("%v, want EINVAL and the reason", err)
	}
	if err := c.blacklisted(symbol.Resolved{Func: &symbol.Func{Name: "main.main", Lang: symbol.LangGo}}); err != nil {
		t.Error(err)
	}
}

// TestForbiddenPlaces: the kernel's objects and the code of probes are not probed.
func TestForbiddenPlaces(t *testing.T) {
	site := &target.Site{Detour: &arch.Detour{Addr: 0x10000}, Room: 64}
	c := &Core{fns: map[uint64]*function{0x400000: {sites: []*target.Site{site}}}}
	for text, bad := range map[string]bool{
		"p 0x10000": true, "p 0x1003f": true, "p 0x10040": false, "p 0xffff": false,
		"p [vdso]:__vdso_time": true, "p linux-vdso.so.1:clock_gettime": true, "p libc.so.6:time": false,
	} {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.forbidden(d); bad != errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
