package guest_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/testguest"
)

// namesCalls are calls of the functions that the cases probe: files that are there and that are not, and a connection.
var namesCalls = [][]string{{"openname", "/proc/version", "2048", "0"}, {"openname", "/no/such", "577", "420"}, {"tcp"}}

// behindENDBR is where the kernel's own probes stand in functions that begin with ENDBR64, which ours show at the entry.
var behindENDBR = regexp.MustCompile(`^\(([^ ]+)\+0x4/`)

// eventLines are the lines of a process by their events, without the task, the time and where functions return to.
func eventLines(pid int, lines []string) map[string][]string {
	out := map[string][]string{}
	mark := regexp.MustCompile(fmt.Sprintf(`^ *\S+-%d +\[\d+\] \S+ +[0-9.]+: ([^:]+): (.*)$`, pid))
	for _, l := range lines {
		if m := mark.FindStringSubmatch(l); m != nil {
			out[m[1]] = append(out[m[1]], behindENDBR.ReplaceAllString(caller.ReplaceAllString(m[2], "(<- "), "($1+0x0/"))
		}
	}
	return out
}

// namesLines makes the calls and gives the lines of both.
func namesLines(p *probed) (ours, its map[string][]string) {
	p.Helper()
	ours, its = map[string][]string{}, map[string][]string{}
	for _, c := range namesCalls {
		p.hits = nil
		p.g.Write(tracing+"trace", "", true)
		n := p.g.Hit(c[0], 3, 0, c[1:]...)
		p.poll()
		for ev, ls := range eventLines(n.PID, p.lines()) {
			ours[ev] = append(ours[ev], ls...)
		}
		for ev, ls := range eventLines(n.PID, strings.Split(p.g.Shell("cat "+tracing+"trace"), "\n")) {
			its[ev] = append(its[ev], ls...)
		}
	}
	return ours, its
}

var formatID = regexp.MustCompile(`(?m)^ID: \d+$`)

// namesFormats gives the format files of an event.
func namesFormats(p *probed, name string, e *engine.Event) (ours, its string) {
	p.Helper()
	its, err := p.g.Read(own + name + "/format")
	if err != nil {
		p.Fatal(err)
	}
	return hit.Format(e.Def, e.Prog, 7), formatID.ReplaceAllString(its, "ID: 7")
}

// itsListed is how the guest's own tracer lists an event.
func itsListed(p *probed, name string) string {
	p.Helper()
	text, err := p.g.Read(tracing + "kprobe_events")
	if err != nil {
		p.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^[pr]\d*:kprobes/` + name + ` .*$`).FindString(text)
	return regexp.MustCompile(`^r\d+`).ReplaceAllString(line, "r") // it lists the default number of instances
}

// itsRefusal gives a definition to the guest's own tracer, and tells with which errno and texts it refuses it; "": it takes it.
func itsRefusal(g *testguest.Guest, d string) string {
	g.Write(tracing+"error_log", "", true)
	no := g.Write(tracing+"kprobe_events", d+"\n", false)
	if no == 0 {
		return ""
	}
	log, err := g.Read(tracing + "error_log")
	if err != nil {
		return err.Error()
	}
	return no.Error() + "\n" + strings.Join(histErrors(log), "\n")
}

// ourRefusal is itsRefusal of an error of ours.
func ourRefusal(err error) string {
	var bad *event.Error
	if !errors.As(err, &bad) {
		return fmt.Sprint(err)
	}
	var no syscall.Errno
	if !errors.As(err, &no) {
		no = bad.Code.Errno()
	}
	_, text, _ := strings.Cut(strings.TrimRight(bad.Detail(), "\n"), "error: ")
	return no.Error() + "\n" + text
}

// compareNames gives the guest's own tracer definitions that name arguments, and ours the same. The lines of the same calls and the format
// files must be the same; of definitions that are refused the texts and the carets.
func compareNames(t *testing.T, g *testguest.Guest) {
	t.Helper()
	p := attach(t, g, nil)
	defer p.close()
	remove := ownEvents(t, g, namesGood...)
	evs := p.add(nil, namesGood...)
	for _, e := range evs {
		if ours, its := namesFormats(p, e.Name, engine.OfEvent(e)); ours != its {
			t.Errorf("%s: the format is\n%s\nthe guest's own:\n%s", e.Name, ours, its)
		}
		if ours, its := e.Def.String(), itsListed(p, e.Name); ours != its && !strings.Contains(ours, "$arg*") {
			t.Errorf("listed as\n%s\nthe guest's own:\n%s", ours, its)
		}
	}
	ours, its := namesLines(p)
	for _, e := range evs {
		if a, b := ours[e.Name], its[e.Name]; !slices.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s: lines\n%q\nthe guest's own\n%q", e.Def.Text, a, b)
		}
	}
	if err := p.core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	remove()
	inside := insideOf(p, "do_sys_openat2")
	for _, d := range namesBad {
		d = strings.Replace(d, "INSIDE", inside, 1)
		_, err := p.tryAdd(nil, d)
		if its := itsRefusal(g, d); its != ourRefusal(err) {
			t.Errorf("%s: %s\nthe guest's own: %s", d, ourRefusal(err), its)
		}
	}
	compareModuleNames(p)
	for _, d := range namesDifferences {
		if ours, its := namesOutcomes(p, d.def); ours == its {
			t.Errorf("%s: no difference: %s\n%s", d.def, d.why, ours)
		} else {
			t.Logf("%s: %s\n%s\nthe guest's own:\n%.1000s", d.def, d.why, ours, its)
		}
	}
}

// compareModuleNames names arguments of a function in a module: the kernel finds it by its name alone, ours in its module too.
func compareModuleNames(p *probed) {
	p.Helper()
	p.g.Shell("insmod " + p.g.Module("drivers/net/dummy"))
	if err := p.core.Sync(); err != nil {
		p.Fatal(err)
	}
	const args = " dev->ifindex len=skb->len skb"
	defer ownEvents(p, p.g, "p:d dummy_xmit"+args)()
	for _, place := range []string{"dummy_xmit", "dummy:dummy_xmit"} {
		evs := p.add(nil, "p:d "+place+args)
		if ours, its := namesFormats(p, "d", engine.OfEvent(evs[0])); ours != its {
			p.Errorf("%s: the format is\n%s\nthe guest's own:\n%s", place, ours, its)
		}
		if err := p.core.Remove(evs); err != nil {
			p.Fatal(err)
		}
	}
}

// insideOf finds an instruction of a function, beyond its entry.
func insideOf(p *probed, fn string) string {
	p.Helper()
	for off := 12; off < 32; off++ {
		at := fmt.Sprintf("%s+%d", fn, off)
		if evs, err := p.tryAdd(nil, "p "+at); err == nil {
			if err := p.core.Remove(evs); err != nil {
				p.Fatal(err)
			}
			return at
		}
	}
	p.Fatalf("nothing can be probed in %s", fn)
	return ""
}

// namesOutcomes gives a definition of an event d to both, and tells how each refuses it, or lists it, its format and the lines of calls.
func namesOutcomes(p *probed, d string) (ours, its string) {
	p.Helper()
	evs, err := p.tryAdd(nil, d)
	if err != nil {
		ours = ourRefusal(err)
	}
	if its = itsRefusal(p.g, d); its == "" {
		defer ownEvents(p, p.g)() // enables it
	}
	ourLines, itsLines := namesLines(p)
	if its == "" {
		text, err := p.g.Read(own + "d/format")
		if err != nil {
			p.Fatal(err)
		}
		its = itsListed(p, "d") + "\n" + formatID.ReplaceAllString(text, "ID: 7") + strings.Join(itsLines["d"], "\n")
	}
	if ours == "" {
		e := engine.OfEvent(evs[0])
		ours = e.Def.String() + "\n" + hit.Format(e.Def, e.Prog, 7) + strings.Join(ourLines["d"], "\n")
		if err := p.core.Remove(evs); err != nil {
			p.Fatal(err)
		}
	}
	return ours, its
}

// namesByRegister are definitions by name, and the same by registers and offsets, which a kernel takes that has no names.
var namesByRegister = [][2]string{
	{"p:open do_sys_openat2 dfd filename:ustring f=how->flags:u64", "p:open do_sys_openat2 dfd=%di:s32 filename=+0(%si):ustring f=+0(%dx):u64"},
	{"p:again do_sys_openat2 how filename", "p:again do_sys_openat2 how=%dx:x64 filename=%si:x64"},
	{"r:ret do_sys_openat2 $retval", "r:ret do_sys_openat2 $retval:s64"},
	{"r:file do_filp_open $retval", "r:file do_filp_open $retval:x64"},
	{"p:cast do_sys_openat2 f=(open_how)%dx->flags m=(open_how)$arg3->mode", "p:cast do_sys_openat2 f=+0(%dx):u64 m=+8(%dx):u64"},
	{"p:casts vfs_open n=(dentry)(path->dentry)->d_name.name:string m=(path,dentry)(path)->mnt", "p:casts vfs_open n=+0(+40(+8(%di))):string m=-8(%di):x64"},
	{"p:vopen vfs_open path->dentry file", "p:vopen vfs_open arg1=+8(%di):x64 file=%si:x64"},
}

// connect has a program listen, which sets an option of its socket, and another one connect to it.
const connect = `nc -l -p 4711 >/dev/null & until echo x | nc -w 1 127.0.0.1 4711; do :; done; wait`

// TestNames names arguments in a kernel whose own tracer can not, and compares with what it shows of registers and offsets.
func TestNames(t *testing.T) {
	g := testguest.Shared(t)
	p := attach(t, g, nil)
	var ours, its []string
	for _, d := range namesByRegister {
		ours, its = append(ours, d[0]), append(its, d[1])
	}
	ownEvents(t, g, its...)
	evs := p.add(nil, ours...)
	a, b := namesLines(p)
	for _, e := range evs {
		if !slices.Equal(a[e.Name], b[e.Name]) || len(a[e.Name]) == 0 {
			t.Errorf("%s: lines\n%q\nthe guest's own\n%q", e.Def.Text, a[e.Name], b[e.Name])
		}
	}
	p.hits = nil
	p.add(nil, "p:option sock_setsockopt level optname optlen") // in front of the last is a struct that takes two registers
	g.Shell(connect)
	p.poll()
	if all := strings.Join(p.lines(), "\n"); !strings.Contains(all, ") level=1 optname=2 optlen=4") {
		t.Errorf("an option of a socket: %s", all)
	}
}
