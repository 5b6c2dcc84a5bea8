package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// VisitStage is where a Program is visited.
type VisitStage struct {
	*Program
	kprobe  string // the command
	dir     string
	cmd     *Command
	want    *outcomeOf // without probes
	objects []*Object
}

// Visits is what a round of a Program was.
type Visits struct {
	Program string
	Mode    string // started, or running
	Seed    uint64
	Visits  int
	Killed  int
	Kept    int               // detaches that took out uprobes which the kernel had kept
	Armed   int               // events, of all visits
	Hits    uint64            // as kprobe has told
	Sets    map[string]int    // visits that armed something
	Refused map[string]string // a set that was refused whole: the reason
	Wrong   error
}

func (v *Visits) String() string {
	verdict := "ok"
	if v.Wrong != nil {
		verdict = "DIFFERENT: " + v.Wrong.Error() + fmt.Sprintf("\n\trepeat: go run ./internal/soak/cmd -visits -program %s -seed %#x", v.Program, v.Seed)
	}
	s := fmt.Sprintf("%-10s %-8s seed=%#x visits=%d killed=%d kept=%d armed=%d hits=%d sets %s: %s",
		v.Program, v.Mode, v.Seed, v.Visits, v.Killed, v.Kept, v.Armed, v.Hits, short(v.Sets), verdict)
	for _, name := range slices.Sorted(maps.Keys(v.Refused)) {
		s += fmt.Sprintf("\n\trefused: %s: %s", name, v.Refused[name])
	}
	return s
}

// NewVisitStage makes a program ready, and runs it once without probes. kprobe is the command's path.
func NewVisitStage(p *Program, kprobe, dir string, size int) (*VisitStage, error) {
	if err := p.missing(); err != nil {
		return nil, err
	}
	s := &VisitStage{Program: p, kprobe: kprobe, dir: filepath.Join(dir, "visit-"+p.Name)}
	err := os.MkdirAll(s.dir, 0o755)
	if err != nil {
		return nil, err
	}
	if s.cmd, err = p.Prepare(s.dir, size); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	r, err := p.start(s.cmd)
	if err != nil {
		return nil, err
	}
	opened := eventually(func() error {
		if r.ended() {
			return nil
		}
		return s.open(r.pid)
	})
	if s.want, err = r.wait(); err != nil {
		return nil, fmt.Errorf("%s without probes: %w\n%s", p.Name, err, s.want.stderr)
	}
	return s, errors.Join(opened, s.want.differs(s.want))
}

// Close lets go of files.
func (s *VisitStage) Close() {
	for _, o := range s.objects {
		o.close()
	}
}

// Round runs the program once, and has kprobe come to it: from the start, or again and again.
func (s *VisitStage) Round(seed uint64) (*Visits, error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	v := &Visits{Program: s.Name, Mode: "running", Seed: seed, Sets: map[string]int{}, Refused: map[string]string{}}
	sets := s.sets(rng)
	var r *running
	var err error
	if rng.IntN(3) == 0 {
		v.Mode = "started"
		x := sets[rng.IntN(len(sets))]
		x.lines = nil // which of them are refused is not known before there is a process
		args := x.args
		if x.name == "inner" || x.name == "inner records" {
			args = []string{"p *"}
		}
		words := filepath.Join(s.dir, "words")
		r, err = s.start(s.cmd, append(append([]string{s.kprobe, "trace", "-o", words}, args...), "--")...)
		if err == nil {
			v.Visits = 1
			v.Wrong = s.judge(r)
			v.sum(x.name, r.out.stderr)
			if v.Wrong != nil && r.out.stdout == "" && refusal.MatchString(r.out.stderr) {
				v.Refused[x.name], v.Wrong = firstLine(r.out.stderr), nil
			}
		}
		return v, err
	}
	if r, err = s.start(s.cmd); err != nil {
		return v, err
	}
	for v.Wrong == nil && !r.ended() {
		v.Wrong = s.visit(v, r, sets[rng.IntN(len(sets))], rng)
	}
	v.Wrong = errors.Join(s.judge(r), v.Wrong)
	return v, nil
}

// judge waits for a program's end and compares.
func (s *VisitStage) judge(r *running) error {
	got, err := r.wait()
	return errors.Join(err, got.differs(s.want))
}

// refusal is how kprobe says that it will not.
var refusal = regexp.MustCompile(`(?m)^kprobe: `)

// visit has kprobe trace come to one of the program's processes, and go by one of the ways that there are.
func (s *VisitStage) visit(v *Visits, r *running, x set, rng *rand.Rand) error {
	pids := r.processes()
	pid := pids[rng.IntN(len(pids))]
	args := append([]string{"trace", "-p", strconv.Itoa(pid), "-o", "/dev/null"}, x.args...)
	way := rng.IntN(3)
	if way == 0 {
		args = append(args, "--duration", fmt.Sprintf("%dms", 100+rng.IntN(400)))
	}
	v.Visits++
	said, err := s.traced(args, x.lines, func(cmd *exec.Cmd, done <-chan struct{}) {
		switch way {
		case 0:
			return
		case 1:
			after(done, 200+rng.IntN(800))
			_ = cmd.Process.Signal(syscall.SIGINT)
		default:
			after(done, rng.IntN(900))
			_ = cmd.Process.Kill()
		}
	})
	if way == 2 {
		v.Killed++
	}
	if err != nil {
		return fmt.Errorf("kprobe %s: %w", strings.Join(args, " "), err)
	}
	v.sum(x.name, said)
	undone := way == 2 && rng.IntN(2) == 0
	refused := way != 2 && !strings.Contains(said, "hits=") // then what a killed one has left is still there
	if refused && exists(pid) && !strings.Contains(said, "no such process") {
		v.Refused[x.name] = firstLine(said)
	}
	if undone || refused {
		said, err = s.traced([]string{"detach", "-p", strconv.Itoa(pid)}, nil, nil)
		if err != nil {
			return fmt.Errorf("kprobe detach -p %d: %w: %s", pid, err, said)
		}
		if strings.Contains(said, "the kernel had kept") {
			v.Kept++
		}
	}
	if way == 2 && !undone {
		return nil // the next visit undoes it, or the program ends so
	}
	return intact(pid)
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return last(line, 400)
}

// after waits some milliseconds, or until something is over.
func after(done <-chan struct{}, ms int) {
	select {
	case <-done:
	case <-time.After(time.Duration(ms) * time.Millisecond):
	}
}

// badLine is how kprobe names a definition of a file that it refuses.
var badLine = regexp.MustCompile(`(?m)^kprobe: line (\d+)`)

// traced runs the command, leaving out the definitions that it refuses, and returns what it said. end is
// called when it has been started.
func (s *VisitStage) traced(args, lines []string, end func(*exec.Cmd, <-chan struct{})) (string, error) {
	for range 20 {
		said, err := s.tracedOnce(args, lines, end)
		bad := badLine.FindAllStringSubmatch(said, -1)
		if err != nil || len(lines) == 0 || len(bad) == 0 {
			return said, err
		}
		lines = slices.Clone(lines)
		for _, m := range bad {
			if n, err := strconv.Atoi(m[1]); err == nil && n <= len(lines) {
				lines[n-1] = "#"
			}
		}
	}
	return "", errors.New("definitions are refused again and again")
}

func (s *VisitStage) tracedOnce(args, lines []string, end func(*exec.Cmd, <-chan struct{})) (string, error) {
	if len(lines) > 0 {
		path := filepath.Join(s.dir, "probes")
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return "", err
		}
		args = append(slices.Clone(args), "--probes", path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, s.kprobe, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTRAP) } // Go then says where each goroutine waits
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	done := make(chan struct{})
	go func() {
		if end != nil {
			end(cmd, done)
		}
	}()
	_ = cmd.Wait()
	close(done)
	if ctx.Err() != nil {
		return said.String(), fmt.Errorf("it did not end within %v: %s", patience, last(said.String(), 20000))
	}
	if crash.Match(said.Bytes()) || cmd.ProcessState.ExitCode() == 2 {
		return said.String(), fmt.Errorf("%s: %s", cmd.ProcessState, last(said.String(), 3000))
	}
	return said.String(), nil
}

// crash is what a Go program says that dies.
var crash = regexp.MustCompile(`(?m)^(panic:|fatal error:|SIG[A-Z]+:)`)

var hitsLine = regexp.MustCompile(`(?m) hits=(\d+) `)

// sum adds up what a trace has said at its end.
func (v *Visits) sum(name, said string) {
	for _, m := range hitsLine.FindAllStringSubmatch(said, -1) {
		n, _ := strconv.ParseUint(m[1], 10, 64)
		v.Hits += n
		v.Armed++
	}
	if strings.Contains(said, " hits=") {
		v.Sets[name]++
	}
}
