package symbol

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var stubLine = regexp.MustCompile(`^([0-9a-f]+) <(.*@plt)>:$`)

// TestPLT compares the names of PLT stubs with objdump's.
func TestPLT(t *testing.T) {
	for name, path := range map[string]string{
		"redis": redis, "gdb": "/usr/bin/gdb", "libc": "/lib/x86_64-linux-gnu/libc.so.6",
		"pie": buildC(t, "pie"), "nopie": buildC(t, "nopie"), "ibt": buildC(t, "ibt"), "clang": buildC(t, "clang"),
	} {
		t.Run(name, func(t *testing.T) {
			im := open(t, path, noDebug)
			n := 0
			for line := range strings.Lines(run(t, "objdump", "-d", "-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got", path)) {
				p := stubLine.FindStringSubmatch(strings.TrimSpace(line))
				if p == nil || strings.HasPrefix(p[2], "*ABS*") {
					continue
				}
				want, _, _ := strings.Cut(p[2], "@")
				addr := hexNum(t, p[1])
				fn, off, ok := im.At(addr)
				if !ok || off != 0 || !fn.PLT || fn.Name != want+"@plt" {
					t.Errorf("0x%x is %+v, %d, objdump says %s", addr, fn, off, p[2])
				}
				n++
			}
			if n == 0 {
				t.Error("objdump shows no stub")
			}
		})
	}
}

func TestPLTLookup(t *testing.T) {
	im := open(t, buildC(t, "pie"), noDebug)
	if f := one(t, im, "fprintf@plt"); !f.PLT {
		t.Errorf("fprintf@plt: %+v", f)
	}
	if _, err := im.Lookup("fprintf"); err == nil {
		t.Error("an imported function is found without @plt")
	}
	if fns := im.Glob("fprint*"); len(fns) != 0 {
		t.Errorf("Glob(fprint*) gives %v", fns)
	}
	if fns := im.Glob("fprint*@plt"); len(fns) != 1 {
		t.Errorf("Glob(fprint*@plt) gives %v", fns)
	}
	if slots := im.Slots("fprintf"); len(slots) != 1 {
		t.Errorf("Slots(fprintf) = %x", slots)
	}
}

func TestIRelatives(t *testing.T) {
	im := open(t, buildC(t, "static"), noDebug)
	chosen := one(t, im, "chosen")
	if !slices.ContainsFunc(im.IRelatives(), func(r IRelative) bool { return r.Resolver == chosen.Addr }) {
		t.Errorf("no relocation calls the resolver 0x%x: %x", chosen.Addr, im.IRelatives())
	}
}
