package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/killat"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// reading are the system calls that change nothing but the caller: one after the other with
// none between them they are one point.
var reading = wordsOf("kcmp pread64 read fstat newfstatat lseek getdents64 readlink readlinkat faccessat faccessat2 getpid gettid " +
	"process_vm_readv uname nanosleep sched_yield futex openat close fcntl epoll_ctl epoll_create1 epoll_pwait eventfd2 waitid clock_gettime " +
	"getrandom pidfd_open pidfd_send_signal madvise rt_sigprocmask rt_sigreturn sched_setattr")

func wordsOf(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// changes says whether a system call can change the process that is traced.
func changes(pt *killat.Point) bool {
	name := pt.Name()
	return !reading[name] && !strings.HasPrefix(name, "ptrace get")
}

// spot is a place in a tracer's life at which it can be killed.
type spot struct {
	phase, name string
	nr          uint64 // of the system call
	exit        bool
	callers     string // functions of this project, innermost first
	nth         int    // of these, from 1
}

func (p spot) String() string {
	end := "entry"
	if p.exit {
		end = "exit"
	}
	return fmt.Sprintf("%s of %s no. %d in %q, by %s", end, p.name, p.nth, p.phase, p.callers)
}

// ownModule is what the names of this project's functions begin with.
const ownModule = "kprobes.dev/kprobes"

// noCall is the number of the system call at the exit of rt_sigreturn, which restores another's registers.
const noCall = ^uint64(0)

// spotOf tells which spot a point is; false: it is a system call of Go's runtime, or the return
// from a signal's handler.
func spotOf(pt *killat.Point) (spot, bool) {
	p := spot{phase: pt.Phase, name: pt.Name(), nr: pt.Nr, exit: pt.Exit}
	var fns []string
	for _, f := range pt.Stack() {
		if f, ok := strings.CutPrefix(f, ownModule); ok && !strings.Contains(f, "e2e.(*script).") {
			fns = append(fns, strings.TrimPrefix(f, "/"))
		}
	}
	p.callers = strings.Join(fns, " < ")
	return p, len(fns) > 0 && pt.Nr != noCall
}

// spotsOf runs a tracer to its end and lists the spots that it passes: those at which the
// traced process may have been changed, before and after, and of the others each kind
// at most max times. Where a busy machine keeps the tracer from stopping the process, it runs again.
func spotsOf(t testing.TB, prog *killat.Program, max int) (out []spot) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		out, o, err := passed(prog, max)
		switch {
		case err == nil && o.Status.Exited() && o.Status.ExitStatus() == 0:
			return out
		case err != nil || !strings.Contains(o.Output, "cannot be stopped within") || time.Now().After(end):
			t.Fatalf("%v: %+v", err, o)
		}
	}
}

// passed is one run of spotsOf.
func passed(prog *killat.Program, max int) (out []spot, o *killat.Outcome, err error) {
	seen := map[spot]int{}
	o, err = prog.Run(func(pt *killat.Point) bool {
		change := changes(pt)
		if !change && pt.Exit {
			return false
		}
		p, own := spotOf(pt)
		if !own {
			return false
		}
		seen[p]++
		p.nth = seen[p]
		if change || p.nth <= max {
			out = append(out, p)
		}
		return false
	})
	return out, o, err
}

// killed runs a tracer and kills it at a spot. False: it did not come there.
func killed(t testing.TB, prog *killat.Program, at spot) bool {
	n := 0
	prog.Calls = []uint64{at.nr}
	o, err := prog.Run(func(pt *killat.Point) bool {
		if pt.Phase != at.phase || pt.Exit != at.exit || pt.Name() != at.name {
			return false
		}
		p, own := spotOf(pt)
		if !own || p.callers != at.callers {
			return false
		}
		n++
		return n == at.nth
	})
	switch {
	case err != nil:
		t.Error(err)
	case o.Struck && o.Status.Signal() != unix.SIGKILL:
		t.Errorf("it was to be killed: %+v", o)
	case !o.Struck && o.Status.ExitStatus() != 0 && !slices.ContainsFunc(excuses, func(s string) bool { return strings.Contains(o.Output, s) }):
		t.Errorf("%+v", o)
	}
	return o != nil && o.Struck
}

// excuses of a tracer that gave up: the machine did not let a thread arrive in time, or a
// thread was in its probes' work whenever it looked. It then ends as if it had been killed.
var excuses = []string{"cannot be stopped within", "in the code that would change"}

// survived checks a process whose tracer has been killed: it works on, nobody holds it, its
// list can be read, kprobe detach restores it, and it works.
func survived(t testing.TB, p *testprog.Proc, before *state) {
	t.Helper()
	sc := &scenario{runs: true}
	before.free(t)
	sc.work(t, p)
	o := run(t, command(t, "list", "-p", pid(p)))
	armed := slices.ContainsFunc(strings.Split(strings.TrimSpace(o.stdout), "\n"), func(l string) bool {
		return l != "" && !strings.Contains(l, "[DISABLED]")
	})
	armed = armed || strings.Contains(o.stderr, "kprobe's own probes stand")
	if patches := patched(t, p.PID); o.code != 0 || armed != patches {
		t.Errorf("list says %v, patches stand there: %v", o, patches)
	}
	detach(t, p.PID)
	before.same(t)
	sc.work(t, p)
}

// patched says whether a patch of ours stands in a process.
func patched(t testing.TB, pid int) bool {
	t.Helper()
	p, err := process.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l, err := process.FindLeftover(p)
	if err != nil {
		t.Fatal(err)
	}
	if l == nil {
		return false
	}
	return slices.ContainsFunc(l.Sites, func(s process.Patched) bool {
		have := make([]byte, len(s.Patch))
		return p.ReadMem(s.Addr, have) == nil && bytes.Equal(have, s.Patch)
	})
}

// scripted is the session in a process of its own.
func scripted(t testing.TB, p *testprog.Proc) *killat.Program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &killat.Program{Path: exe, Env: append(os.Environ(), fmt.Sprintf("%s=%d", sessionProcess, p.PID)), Patience: patience}
}

// The tracer is killed at every system call of attach, arm, optimise, disarm and detach that
// can change the process, at its entry and at its exit, and at a few of each kind of the
// others; in a short run once of each kind of those that can. A kind is a phase, a system call and
// the functions that led to it. The process lives, and kprobe detach restores it, every time.
func TestKilledAtEverySystemCall(t *testing.T) {
	t.Parallel()
	strikeAll(t, scripted)
}

// struck is a process that is traced by tracers that are killed.
type struck struct {
	p      *testprog.Proc
	before *state
	n      map[string]int // kills, by part of the tracer's life
}

// strikeAll strikes a tracer at all spots, on two targets at once.
func strikeAll(t *testing.T, tracer func(testing.TB, *testprog.Proc) *killat.Program) {
	var ps [2]*struck
	for i := range ps {
		p := program(t, "leaf", "1", "500") // its handled calls come now and then
		(&scenario{runs: true}).work(t, p)  // all of its threads are there
		ps[i] = &struck{p, stateOf(t, p.PID), map[string]int{}}
	}
	all := spotsOf(t, tracer(t, ps[0].p), 3)
	ps[0].before.same(t)
	spots, over := chosen(all), ending()
	var wg sync.WaitGroup
	for i, s := range ps {
		wg.Go(func() {
			defer s.alive(t)
			for n := i; n < len(spots) && !t.Failed() && !over(); n += len(ps) {
				s.strike(t, tracer(t, s.p), spots[n])
			}
		})
	}
	wg.Wait()
	tried := 0
	for k, n := range ps[1].n {
		ps[0].n[k] += n
	}
	for _, n := range ps[0].n {
		tried += n
	}
	missed := ps[0].n["not met"]
	t.Logf("%d spots, %d chosen, %d tried; killed, by phase: %v", len(all), len(spots), tried, ps[0].n)
	if missed*4 > tried {
		t.Errorf("%d of %d spots were not met again", missed, tried)
	}
}

// strike kills a tracer at a spot and checks the process.
func (s *struck) strike(t *testing.T, prog *killat.Program, at spot) {
	if killed(t, prog, at) {
		s.n[at.part()]++
	} else {
		s.n["not met"]++
	}
	survived(t, s.p, s.before)
	if t.Failed() {
		t.Errorf("the tracer was killed at the %v", at)
	}
}

// alive checks that the process has not ended.
func (s *struck) alive(t *testing.T) {
	if !s.p.Alive() {
		t.Errorf("the process has ended: %v; %s", s.p.Wait(), s.p.Stderr())
	}
}

// plumbing are functions that make a system call for whoever calls them.
var plumbing = regexp.MustCompile(`^target/process\.(ptrace|ptraceAt|getRegs|setRegs|getSigMask|setSigMask|\(\*Proc\)\.(access|ReadMem|WriteMem)|\(\*Thread\)\.[sS]etRegs)$`)

// part is the part of a tracer's life that the spot is in.
func (p spot) part() string {
	w, _, _ := strings.Cut(strings.ReplaceAll(p.phase, ":", ""), " ")
	return w
}

// kind is what the spots have in common of which a short run tries one.
func (p spot) kind() spot {
	k := spot{name: p.name}
	k.phase = p.part()
	for f := range strings.SplitSeq(p.callers, " < ") {
		if k.callers = f; !plumbing.MatchString(f) {
			break
		}
	}
	return k
}

// ending says when a long run that was given a time (KPROBES_E2E_LONG=10m) is over.
func ending() func() bool {
	d, err := time.ParseDuration(os.Getenv("KPROBES_E2E_LONG"))
	end := time.Now().Add(d)
	return func() bool { return err == nil && time.Now().After(end) }
}

// chosen are the spots that are tried: in a short run one of each kind of those that can change
// the process, the entry of the one and the exit of the next; in a long one all, in any order.
func chosen(all []spot) []spot {
	if long {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all
	}
	kinds := map[spot]bool{}
	var out []spot
	for _, p := range all {
		k := p.kind()
		if reading[p.name] || strings.HasPrefix(p.name, "ptrace get") || p.exit != (len(out)%2 == 1) || kinds[k] {
			continue
		}
		kinds[k] = true
		out = append(out, p)
	}
	return out
}
