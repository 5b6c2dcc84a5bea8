package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/testguest"
)

// sample is a module of the kernel's own samples.
type sample struct {
	name, parameter string
}

var kernelSamples = []sample{{"kprobe_example", "symbol=do_fchownat"}, {"kretprobe_example", "func=do_fchownat"}}

// buildSamples builds the kernel's samples as its own modules, and gives the directory: the sources are there too.
func buildSamples(t *testing.T) string {
	t.Helper()
	from, err := guestkit.Samples(guestkit.Cloud)
	if err != nil {
		t.Fatal(err)
	}
	headers, err := guestkit.Headers(guestkit.Cloud)
	if err != nil {
		t.Fatal(err)
	}
	dir, objects := t.TempDir(), "obj-m :="
	for _, s := range kernelSamples {
		text, err := os.ReadFile(filepath.Join(from, s.name+".c"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, s.name+".c"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		objects += " " + s.name + ".o"
	}
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(objects+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("make", "-C", headers, "M="+dir, "CC=gcc", "modules").CombinedOutput(); err != nil {
		t.Fatalf("make: %v (install make, gcc and libelf1)\n%s", err, out)
	}
	return dir
}

// What differs in lines of a module that is loaded twice: the kernel's log has the time before it; addresses, which the kernel does not show; and how long something took.
var (
	logTime     = regexp.MustCompile(`^(<\d+>)?\[ *\d+\.\d+\] `)
	logAddress  = regexp.MustCompile(`(0x)?(\b[0-9a-f]{16}\b|\(____ptrval____\))|0x[0-9a-f]{16}\b`)
	logDuration = regexp.MustCompile(`took \d+ ns`)
	aboutModule = regexp.MustCompile(`^(kprobe_example|kretprobe_example|Disabling lock debugging|module verification)`)
)

// maskLines takes what differs out of lines, and those that a kernel writes about modules.
func maskLines(lines []string) (out []string) {
	for _, l := range lines {
		l = logTime.ReplaceAllString(l, "")
		if l == "" || aboutModule.MatchString(l) {
			continue
		}
		out = append(out, logDuration.ReplaceAllString(logAddress.ReplaceAllString(l, "ADDRESS"), "took N ns"))
	}
	return out
}

// TestKmodSamples loads the kernel's own samples of kprobes, as they are, into the guest's kernel, and has the guest load the same as its own modules: what they
// write is the same.
func TestKmodSamples(t *testing.T) {
	dir, files := buildSamples(t), map[string]string{}
	for _, s := range kernelSamples {
		files["lib/"+s.name+".ko"] = filepath.Join(dir, s.name+".ko")
	}
	m := attachModules(t, testguest.Boot(t, &testguest.Options{Files: files, CPUModel: "qemu64,+smep,+smap"}))
	const calls = 20
	for _, s := range kernelSamples {
		already := len(m.log())
		m.insert(filepath.Join(dir, s.name+".c"), s.parameter)
		m.g.Hit("chown", calls, 1)
		m.remove(s.name)
		ours := maskLines(m.log()[already:])

		m.g.Shell(fmt.Sprintf("dmesg -c >/dev/null; insmod /lib/%s.ko %s", s.name, s.parameter))
		m.g.Hit("chown", calls, 1)
		own := maskLines(strings.Split(m.g.Shell("rmmod "+s.name+"; dmesg"), "\n"))
		if !slices.Equal(ours, own) || len(own) < calls {
			t.Errorf("%s writes\n%s\nand as the guest's own module\n%s", s.name, strings.Join(ours, "\n"), strings.Join(own, "\n"))
		}
	}
	m.faults("null", "a fault in a handler") // with SMAP a user's address goes another way
}
