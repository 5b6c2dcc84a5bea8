package trace

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
)

// fileOffset is where the code of a function lies in a file.
func fileOffset(t *testing.T, file, fn string) uint64 {
	t.Helper()
	f, err := elf.Open(file)
	must(t, err)
	defer f.Close()
	syms, err := f.Symbols()
	must(t, err)
	for _, s := range syms {
		if s.Name != fn {
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Filesz {
				return s.Value - p.Vaddr + p.Off
			}
		}
	}
	t.Fatalf("%s has no function %s", file, fn)
	return 0
}

// TestUprobes counts hits at offsets in the program's file, which is named by a link, as those of its function.
func TestUprobes(t *testing.T) {
	file := testprog.Build(t, "work")
	prog, in := instanceOf(t, testprog.Start(t, file, "2"), nil)
	link := filepath.Join(t.TempDir(), "w.so")
	must(t, os.Symlink(file, link))
	off := fileOffset(t, file, "f_push")
	must(t, in.WriteUprobe(fmt.Sprintf("p %s:%d v=%%di m=@+0:x32\nr:back %[1]s:0x%[2]x $retval", link, off)))
	must(t, in.Write("p:a f_lea"))
	name := fmt.Sprintf("p_w_0x%x", off)
	want := fmt.Sprintf("p:uprobes/%s %s:0x%016x v=%%di m=@+0:x32\nr:uprobes/back %[2]s:0x%016[3]x arg1=$retval\n", name, link, off)
	if got := text(t, in.WriteUprobes); got != want {
		t.Errorf("uprobe_events\n%swant\n%s", got, want)
	}
	if got := text(t, in.WriteDefinitions); got != "p:kprobes/a f_lea\n" {
		t.Errorf("kprobe_events: %s", got)
	}
	if got := text(t, in.WriteDynamics); got != want+"p:kprobes/a f_lea\n" {
		t.Errorf("dynamic_events: %s", got)
	}
	must(t, in.Enable("", "", true))
	n := goes(prog, 50, "f_push")
	want = fmt.Sprintf("  %s %-44s %15d\n  %[1]s %-44[4]s %15[3]d\n", link, name, n, "back")
	if got := text(t, in.WriteUprobeProfile); got != want || n == 0 {
		t.Errorf("uprobe_profile\n%swant\n%s", got, want)
	}
	if got := text(t, in.WriteProfile); strings.Count(got, "\n") != 1 || !strings.Contains(got, "  a ") {
		t.Errorf("kprobe_profile\n%s", got)
	}
	if got := strings.Count(text(t, in.WriteTrace), ": "+name+": (f_push+0x0/0x"); got != n {
		t.Errorf("%d lines of %d hits", got, n)
	}
	if got := strings.Count(text(t, in.WriteTrace), fmt.Sprintf(" m=0x%x\n", binary.LittleEndian.Uint32([]byte(elf.ELFMAG)))); got != n {
		t.Errorf("%d of %d hits have the first bytes of the file", got, n)
	}
	must(t, in.SetFilter("uprobes", name, "v == 12345"))
	must(t, in.WriteTrigger("uprobes", "back", "hist:keys=arg1 if arg1 == 54321"))
	in.Clear()
	goes(prog, 20, "f_push")
	if out := text(t, in.WriteTrace); strings.Contains(out, ": "+name+": ") || !strings.Contains(out, ": back: (") {
		t.Errorf("a filter that no hit passes lets some:\n%.400s", out)
	}
	must(t, in.SetFilter("uprobes", name, "0"))
	must(t, in.ClearTriggers("uprobes", "back"))
	for _, err := range []error{in.ClearUprobe(), in.WriteUprobe("-:back"), in.Replace("")} {
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("events that are enabled are deleted: %v", err)
		}
	}
	must(t, in.Enable("", "", false))
	if err := in.WriteUprobe("-:a"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("uprobe_events deletes a kprobe: %v", err)
	}
	if err := in.Write("-:back"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("kprobe_events deletes a uprobe: %v", err)
	}
	must(t, in.Replace(""))
	if got := text(t, in.WriteDynamics); strings.Count(got, "\n") != 2 || !strings.Contains(got, "back") {
		t.Errorf("the truncation of kprobe_events leaves\n%s", got)
	}
	must(t, in.WriteDynamic("-:uprobes/back"))
	must(t, in.Write("p:a f_lea"))
	must(t, in.ClearUprobe())
	if got := text(t, in.WriteDynamics); got != "p:kprobes/a f_lea\n" {
		t.Errorf("the truncation of uprobe_events leaves\n%s", got)
	}
}

// TestUprobeLater arms an event in an object that comes later.
func TestUprobeLater(t *testing.T) {
	prog, in := instanceOf(t, testprog.Start(t, testprog.Build(t, "dl")), nil)
	file := testprog.Build(t, "libdlone")
	must(t, in.WriteDynamic(fmt.Sprintf("p:g/a %s:0x%x", file, fileOffset(t, file, "lib_work"))))
	must(t, in.Enable("", "", true))
	prog.Ask("open "+file, nil)
	prog.Ask("call 50", nil)
	n := prog.Counts("count")["lib_work"]
	if got, want := text(t, in.WriteUprobeProfile), fmt.Sprintf("  %s %-44s %15d\n", file, "a", n); got != want || n == 0 {
		t.Errorf("uprobe_profile\n%swant\n%s", got, want)
	}
}

// TestUprobeRefused has refusals, and what error_log says of them.
func TestUprobeRefused(t *testing.T) {
	file := testprog.Build(t, "work")
	_, in := instanceOf(t, testprog.Start(t, file, "2"), nil)
	off := fileOffset(t, file, "f_push")
	must(t, in.WriteUprobe(fmt.Sprintf("p:g/u %s:0x%x", file, off)))
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(file, link))
	for def, want := range map[string]struct {
		code event.Code
		no   error
	}{
		"p:g/v /nosuch:0x1000":                        {event.FileNotFound, unix.ENOENT},
		"p:g/v bin/sh:0x1000":                         {event.FileNotFound, unix.ENOENT},
		"p:g/v " + t.TempDir() + ":0x1000":            {event.NoRegularFile, unix.EINVAL},
		fmt.Sprintf("p:g/u %s:0x%x", file, off):       {event.SameProbe, unix.EEXIST},
		fmt.Sprintf("p:g/u %s:0x%x", link, off):       {event.SameProbe, unix.EEXIST},
		fmt.Sprintf("r:g/u %s:0x%x", file, off):       {event.DiffProbeType, unix.EEXIST},
		fmt.Sprintf("r:g/v %s:0x%x", file, off+1):     {event.BadRetprobe, unix.EINVAL},
		fmt.Sprintf("p:g/v %s:0x%x", file, 1<<40):     {event.BadProbeAddr, unix.EINVAL},
		fmt.Sprintf("p:g/v %s:0x%x(", file, off):      {event.RefcntOpenBrace, unix.EINVAL},
		fmt.Sprintf("p:g/v %s:0x%x a=%%q", file, off): {event.BadRegName, unix.EINVAL},
	} {
		in.ClearErrorLog()
		err := in.WriteUprobe(def)
		var bad *event.Error
		if !errors.As(err, &bad) || bad.Code != want.code || !errors.Is(bad.Errno(), want.no) {
			t.Errorf("%s: %v", def, err)
		} else if log := in.ErrorLog(); !strings.Contains(log, "trace_uprobe: error: "+want.code.Text()) {
			t.Errorf("%s: error_log: %s", def, log)
		}
	}
	if err := in.Write("p:g/u f_push"); !event.HasCode(err, event.EventExist) {
		t.Errorf("a kprobe of the name: %v", err)
	}
	must(t, in.WriteUprobe(fmt.Sprintf("p:g/counted %s:0x%x(0x10)", file, off)))
	if err := in.Enable("g", "counted", true); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("an event with a counter is enabled: %v", err)
	}
	must(t, in.Enable("g", "u", true))
}
