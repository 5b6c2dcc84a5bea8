package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// faultTold waits until the log says that a fault has ended the handler of deep's probe.
func faultTold(t testing.TB, log func() string) {
	t.Helper()
	within(t, "the fault is told", func() bool {
		return strings.Contains(log(), "] deep: a fault in a handler of the probe at ") && strings.Contains(log(), ": the probe is disabled")
	})
}

// TestInsmodFrames refuses modules whose functions take much of the stack, or of which nobody knows how much, and says which function does.
func TestInsmodFrames(t *testing.T) {
	t.Parallel()
	p := program(t, "hits", "1")
	dir := t.TempDir()
	for name, c := range map[string]struct{ takes, want string }{
		"huge":   {"char b[9000];", "before+0x"},
		"larger": {"char b[200000];", "before+0x"},
		"array":  {"char b[regs->di];", "before+0x"},
		"alloca": {"char *b = __builtin_alloca(regs->di);", "before+0x"},
		"small":  {"char b[7000];", ""},
	} {
		text := `#include <linux/module.h>
#include <linux/kprobes.h>
static noinline void use(volatile char *b) { b[0] = 1; }
static int before(struct kprobe *p, struct pt_regs *regs) { ` + c.takes + ` use(b); return 0; }
static struct kprobe kp = {.symbol_name = "hit", .pre_handler = before};
static int __init start(void) { return register_kprobe(&kp); }
static void __exit end(void) { unregister_kprobe(&kp); }
module_init(start);
module_exit(end);
`
		file := filepath.Join(dir, name+".c")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, flags := range [][]string{nil, {"-fstack-clash-protection", "-fstack-protector-strong"}} {
			object := filepath.Join(dir, name+".o")
			if o := run(t, command(t, append([]string{"cc", file, "-o", object}, flags...)...)); o.code != 0 {
				t.Fatal(o)
			}
			if c.want != "" {
				fails(t, command(t, "insmod", "-p", pid(p), object), 1, "module "+name+": "+c.want, " of the stack, which is the program's: up to 8192 bytes; use static memory")
				continue
			}
			module(t, p, "insmod", object)
			right(t, p, "go 10")
			module(t, p, "rmmod", name)
		}
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
}

// TestInsmodOverruns has handlers overrun their stacks. Where the thread has an alternate stack for signals, as each has in a Go program, that ends
// the handler: the program goes on, and the log says so. Where it has none the kernel ends the program, as it ends every one that overruns its stack.
func TestInsmodOverruns(t *testing.T) {
	t.Parallel()
	deep := object(t, "deep")
	t.Run("alternate", func(t *testing.T) {
		p := program(t, "hits", "4", "alt")
		module(t, p, "insmod", deep, "deep=100")
		right(t, p, "go 1000")
		faultTold(t, func() string { return module(t, p, "dmesg") })
		right(t, p, "go 1000")
		if n := tellings(t, module(t, p, "rmmod", "deep")); n["calls"] < 100 || n["calls"] > 103 || n["faults"] != 0 { // each thread may come to it once; a fault handler has no stack there
			t.Errorf("%v", n)
		}
		within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	})
	t.Run("go", func(t *testing.T) {
		if !guards(t) {
			t.Skip("this kernel has no guard pages within a mapping of a file (Linux 6.15): docs/LIMITS.md says what happens then")
		}
		p := program(t, "gowork", "4")
		module(t, p, "insmod", deep, "function=main.Ints", "deep=100")
		right(t, p, "go 1000")
		faultTold(t, func() string { return module(t, p, "dmesg") })
		p.Counts("gc")
		right(t, p, "go 1000")
		if n := tellings(t, module(t, p, "rmmod", "deep")); n["calls"] < 100 || n["calls"] > 103 || n["faults"] != 0 {
			t.Errorf("%v", n)
		}
		within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	})
	t.Run("none", func(t *testing.T) {
		p := program(t, "hits", "1")
		module(t, p, "insmod", deep, "deep=100")
		p.Send("go 1000")
		if ws, ok := p.Wait().Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGSEGV {
			t.Errorf("it has ended with %v", p.Wait())
		}
	})
}

// guards says whether the kernel has guard pages within a mapping of a file.
func guards(t testing.TB) bool {
	t.Helper()
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := make([]byte, 0, len(u.Release))
	for _, c := range u.Release {
		release = append(release, byte(c))
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}

// TestInsmodSmashes has a handler write behind an array on its stack: -fstack-protector has it end there, and the program goes on. Where the compiler takes it for code of a
// kernel, and has it read what no process has, it is refused.
func TestInsmodSmashes(t *testing.T) {
	t.Parallel()
	p := program(t, "hits", "4")
	kernel := []string{"-fno-pic", "-mcmodel=kernel", "-fstack-protector-strong"}
	for _, cc := range compilers {
		own := filepath.Join(t.TempDir(), "deep.o")
		cmd := command(t, "cc", "testdata/deep.c", "-o", own, "-fstack-protector-strong")
		cmd.Env = append(os.Environ(), "CC="+cc)
		if o := run(t, cmd); o.code != 0 || o.stderr != "" {
			t.Fatal(o)
		}
		for _, object := range []string{own, compileBy(t, cc, "deep", "deep", "-fstack-protector-strong")} {
			module(t, p, "insmod", object, "smash=100")
			right(t, p, "go 1000")
			faultTold(t, func() string { return module(t, p, "dmesg") })
			if n := tellings(t, module(t, p, "rmmod", "deep")); n["calls"] < 100 || n["calls"] > 103 || n["faults"] != n["calls"]-99 {
				t.Errorf("%s: %v", object, n)
			}
		}
		fails(t, command(t, "insmod", "-p", pid(p), compileBy(t, cc, "deep", "deep", kernel...)), 1, "module deep: its code at ", "refers to a CPU's own data", "-fno-stack-protector")
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	right(t, p, "go 1000")
}
