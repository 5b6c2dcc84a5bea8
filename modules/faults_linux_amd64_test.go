package modules_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/modules"
)

// await reads the log until a line has a text.
func await(t *testing.T, table *modules.Table, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for l := range table.Lines(ctx) {
		if strings.Contains(l.Text, text) {
			return
		}
		t.Log(l.Text)
	}
	t.Fatalf("the log has no line with %q", text)
}

// TestFaults has a handler fault, in all ways that an instruction can: the program computes as before, the handler is not called any more, its probe is disabled, and
// the log says so.
func TestFaults(t *testing.T) {
	table := own(t)
	for _, how := range []string{"memory", "division", "instruction"} {
		m := insert(t, table, "faults", "how="+how, "at=100")
		for i := range 99 {
			Sum(i, i)
		}
		call(t, 1, 1) // the 100th
		end := collect()
		call(t, 4, 1000)
		end()
		await(t, table, "faults: a fault in a handler of the probe at kprobes.dev/kprobes/modules_test.Sum+0x0/")
		call(t, 1, 100)
		if lines := remove(t, table, m); last(lines) != "calls=100" {
			t.Errorf("%s: %q, want 100 calls", how, lines)
		}
	}
}

// TestFaultHandler has the handlers of a module fault at every tenth hit, each in its turn: the probe's fault handler has them go on, on goroutines, while the
// collector runs.
func TestFaultHandler(t *testing.T) {
	table := own(t)
	for _, trap := range []int{14, 13, 6, 0} { // not 17: who sets AC has the runtime's own handlers of signals fault too
		m := insert(t, table, "../../internal/e2e/testdata/faulty", fmt.Sprint("trap=", trap), "only=kprobes.dev/kprobes/modules_test.Sum")
		before, end := sums.Load(), collect()
		call(t, 4, 1000)
		end()
		n := sums.Load() - before
		want := fmt.Sprintf("pre=%d post=%d entered=0 returned=0 jumped=0 faults=%d wrong=0 missed=0", n, n, 2*(n/10))
		if lines := remove(t, table, m); len(lines) != 1 || lines[0] != want || n < 4000 {
			t.Errorf("trap %d: %q, want %q", trap, lines, want)
		}
	}
}

// guards says whether the kernel has guard pages (MADV_GUARD_INSTALL, Linux 6.13).
func guards(t *testing.T) bool {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	return unix.Madvise(b, 102) == nil
}

// TestOverrun has a handler overrun its stack.
func TestOverrun(t *testing.T) {
	if !guards(t) {
		t.Skip("the kernel has no guard pages: Linux 6.13 has")
	}
	table := own(t)
	m := insert(t, table, "../../internal/e2e/testdata/deep", "deep=100", "function=kprobes.dev/kprobes/modules_test.Sum")
	call(t, 1, 99)
	call(t, 4, 1000)
	await(t, table, "deep: a fault in a handler of the probe at kprobes.dev/kprobes/modules_test.Sum+0x0/")
	call(t, 4, 1000)
	var calls, faults int
	lines := remove(t, table, m)
	if _, err := fmt.Sscanf(last(lines), "calls=%d faults=%d", &calls, &faults); err != nil || calls < 100 || calls > 103 || faults != 0 {
		t.Errorf("%q: each goroutine may come to it once, and a fault handler has no stack there", lines)
	}
}

// TestFaultAtStart has the start of a module fault, when it has registered a probe: both are taken out.
func TestFaultAtStart(t *testing.T) {
	table := own(t)
	remove(t, table, insert(t, table, "faults"))
	before := low(t)
	for _, how := range []string{"memory", "division", "instruction"} {
		if _, err := table.Insert("faults", object(t, "faults"), "how="+how, "when=start"); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("%s: %v", how, err)
		}
		call(t, 1, 200)
	}
	if after := low(t); after != before || len(table.List()) > 0 || starting(t) > 0 {
		t.Errorf("%v is loaded, %d starts run, and mapped was before:\n%safter:\n%s", table.List(), starting(t), before, after)
	}
}

// TestLoop has a handler not end. The garbage collector waits for it, and the program for that; then the handler is ended.
func TestLoop(t *testing.T) {
	table := own(t)
	m := insert(t, table, "faults", "how=loop", "at=100")
	ended := make(chan bool)
	go func() {
		call(t, 1, 1000)
		close(ended)
	}()
	end := collect()
	<-ended
	end()
	await(t, table, "faults: a handler that does not end of the probe at kprobes.dev/kprobes/modules_test.Sum+0x0/")
	call(t, 1, 100)
	if lines := remove(t, table, m); last(lines) != "calls=100" {
		t.Errorf("%q, want 100 calls", lines)
	}
}

// TestRefused: what can not be loaded says why, and leaves nothing.
func TestRefused(t *testing.T) {
	table := own(t)
	const head = "#include <linux/kernel.h>\n#include <linux/kprobes.h>\n#include <linux/module.h>\nMODULE_LICENSE(\"GPL\");\n"
	start := func(body string) string {
		return fmt.Sprintf("static int __init start(void) { %s }\nmodule_init(start);\n", body)
	}
	for _, c := range []struct {
		name, text string
		errno      syscall.Errno // 0: none in particular
		want       string        // in the error, or in the log
		params     []string
	}{
		{"missing", head + "extern int nobody(void);\n" + start("return nobody();"), 0, "unknown symbol nobody", nil},
		{"wide", head + start(`asm volatile("vxorps %ymm0, %ymm0, %ymm0"); return 0;`), syscall.ENOEXEC, "compile it with -mgeneral-regs-only", nil},
		{"nowhere", head + "static struct kprobe kp = {.symbol_name = \"no.such\"};\n" + start("return register_kprobe(&kp);"), syscall.ENOENT, "no.such", nil},
		{
			"jprobe", head + "static void entry(int a) { jprobe_return(); }\n" +
				"static struct jprobe jp = {.kp.symbol_name = \"kprobes.dev/kprobes/modules_test.Sum\", .entry = entry};\n" + start("return register_jprobe(&jp);"),
			syscall.EOPNOTSUPP, "a jprobe of a module takes the arguments of C functions", nil,
		},
		{"value", head + "static int n;\nmodule_param(n, int, 0);\n" + start("return 0;"), syscall.EINVAL, "n", []string{"n=many"}},
	} {
		_, err := table.Insert(c.name, strings.NewReader(string(source(t, c.name, c.text))), c.params...)
		told := fmt.Sprint(err)
		for l := range table.Lines(done) {
			told += "\n" + l.Text
		}
		if err == nil || c.errno != 0 && !errors.Is(err, c.errno) || !strings.Contains(told, c.want) {
			t.Errorf("%s: %s, want %s", c.name, told, c.want)
		}
	}
	if _, err := table.Insert("text", strings.NewReader("no object")); err == nil || !strings.HasPrefix(err.Error(), "module text: ") {
		t.Errorf("no object: %v", err)
	}
	if _, err := modules.Compile("broken", []byte("int f(void) { return x; }\n")); err == nil || !strings.Contains(err.Error(), "broken.c") {
		t.Errorf("broken source: %v", err)
	}
	if list := table.List(); len(list) > 0 {
		t.Errorf("loaded: %v", list)
	}
}
