package engine

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// TestBlacklistedNames: every name that is listed answers EINVAL with its reason, also as
// the linker writes it, and a function of that name in another language is none of ours.
func TestBlacklistedNames(t *testing.T) {
	c := &Core{}
	for _, l := range []struct {
		lang symbol.Lang
		why  func(string) string
		has  []string
	}{
		{symbol.LangGo, goBlacklisted, []string{
			"runtime.goexit", "runtime.systemstack_switch", "runtime.asyncPreempt", "runtime.duffzero", "runtime.duffcopy", "runtime.sigtramp",
			"runtime.cgoSigtramp", "runtime.sigtrampgo", "runtime.sigfwd", "runtime.sigfwdgo", "runtime.sigprofNonGo", "runtime.sigprofNonGoWrapper",
			"runtime.badsignal", "runtime.sigreturn__sigaction", "_rt0_amd64", "_rt0_amd64_linux", "_rt0_amd64_lib", "_rt0_amd64_linux_lib",
			"runtime.rt0_go", "runtime.settls",
		}},
		{symbol.LangC, cBlacklisted, []string{"__restore_rt", "__restore"}},
	} {
		for _, name := range l.has {
			why := l.why(name)
			for _, fn := range []*symbol.Func{
				{Name: name, Lang: l.lang},
				{Name: name + ".abi0", Lang: l.lang},
				{Name: "another", Aliases: []string{name}, Lang: l.lang},
			} {
				err := c.blacklisted(symbol.Resolved{Func: fn})
				if !errors.Is(err, unix.EINVAL) || why == "" || !strings.Contains(err.Error(), why) {
					t.Errorf("%s %v: %v, want EINVAL and %q", fn.Name, fn.Aliases, err, why)
				}
			}
			if err := c.blacklisted(symbol.Resolved{Func: &symbol.Func{Name: name, Lang: symbol.LangRust}}); err != nil && l.lang == symbol.LangGo {
				t.Errorf("%s of another language: %v", name, err)
			}
		}
	}
	for _, name := range []string{"runtime.mallocgc", "runtime.goexit0", "main.goexit", "runtime.sighandler"} {
		if err := c.blacklisted(symbol.Resolved{Func: &symbol.Func{Name: name, Lang: symbol.LangGo}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
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
