package guest_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testguest"
)

// functionEvents are definitions that begin with f, as the guest's own tracer takes them.
var functionEvents = []string{
	"f:fin do_sys_openat2 dfd=$arg1:s32 name=+0($arg2):ustring flags=+0($arg3):x64",
	"f:fout do_sys_openat2%return ret=$retval:s64",
	"f16:fgrp/fmany vfs_open%return ret=$retval:s32",
	"f do_filp_open dfd=$arg1:s32",
	"f do_dentry_open $retval:s32",
	"f:fnamed path_openat flags open=op->open_flag",
	"f:fmode do_filp_open m=$retval->f_mode dfd",
}

// functionErrors are such definitions that it refuses.
var functionErrors = []string{
	"f:ev do_sys_openat2 %ax", "f:ev do_sys_openat2 a=+0(%di)", "f5:ev do_sys_openat2", "f:ev do_sys_openat2%foo",
	"f99999:ev do_sys_openat2%return", "f:ev do_sys_openat2 $stackp", "f:0ev do_sys_openat2", "f:ev do_sys_openat2 a=$arg1 a=$arg2",
	"f:ev vfs_read none", "f:ev vfs_read file->none", "f:ev vfs_read%return count->x", "f:ev vfs_read $retval->x", "f:ev path_put $retval",
}

// compareFunctionEvents compares definitions that begin with f with the guest's own: how they are listed, what is told of bad ones, and the
// lines of the same calls, but for the offset of the place.
func compareFunctionEvents(t *testing.T, g *testguest.Guest) {
	t.Helper()
	const file = tracing + "dynamic_events"
	var refused []string
	for _, d := range functionErrors {
		g.Write(tracing+"error_log", "", true)
		if e := g.Write(file, d+"\n", false); e == 0 {
			t.Errorf("the guest takes %q", d)
			g.Write(file, "", true)
		}
		log, err := g.Read(tracing + "error_log")
		if err != nil {
			t.Fatal(err)
		}
		refused = append(refused, append(histErrors(log), "")[0]) // of a register it says two
	}
	for _, d := range functionEvents {
		if e := g.Write(file, d+"\n", false); e != 0 {
			t.Fatalf("the guest refuses %q: %v", d, e)
		}
	}
	listing, err := g.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	on := func(v string) {
		for _, group := range []string{"fprobes", "fgrp"} {
			if e := g.Write(tracing+"events/"+group+"/enable", v, true); e != 0 {
				t.Fatal(e)
			}
		}
	}
	g.Write(tracing+"trace", "", true)
	on("1")
	call := func() { g.Hit("openname", 20, 1, "/proc/version", "0", "0") }
	call()
	on("0")
	const values = `s/.* (f[a-z]+|do_[a-z]+_open__[a-z]+): \(([a-z_0-9]*).*\)/\1: \2/`
	its := g.Shell("grep ' hit-' " + tracing + "trace | sed -E '" + values + "' | sed -n '/^fin: /,$p'") // before that it was executed
	g.Write(tracing+"trace", "", true)
	if e := g.Write(file, "", true); e != 0 {
		t.Fatal(e)
	}
	p := attach(t, g, nil)
	defer p.close()
	for i, d := range functionErrors {
		var e *event.Error
		if _, err := p.tryAdd(nil, d); !errors.As(err, &e) {
			t.Errorf("%q: %v", d, err)
		} else if _, text, _ := strings.Cut(e.Detail(), "error: "); strings.TrimRight(text, "\n") != refused[i] {
			t.Errorf("%q:\n%s\nthe guest's own:\n%s", d, text, refused[i])
		}
	}
	evs := p.add(nil, functionEvents...)
	ours := ""
	for _, e := range evs {
		ours += e.Def.String() + "\n"
	}
	if ours != listing {
		t.Errorf("listed:\n%s\nthe guest's own:\n%s", ours, listing)
	}
	p.hits = nil
	call()
	p.poll()
	our := ""
	line := regexp.MustCompile(`.* (f[a-z]+|do_[a-z]+_open__[a-z]+): \(([a-z_0-9]*).*?\)(.*)`)
	for _, l := range p.lines() {
		if strings.HasPrefix(strings.TrimLeft(l, " "), "hit-") {
			our += line.ReplaceAllString(l, "$1: $2$3") + "\n"
		}
	}
	if our != its || strings.Count(its, "\n") < 20*len(functionEvents) {
		t.Errorf("%d lines:\n%.2000s\nthe guest's own:\n%.2000s", strings.Count(our, "\n"), our, its)
	}
}
