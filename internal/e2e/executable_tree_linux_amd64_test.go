package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// A shell script runs a program many times, some at once: every process counts exactly from its first call on, for a user without privileges too, and the
// status is the script's. Others that run the program do not count.
func TestExecutableTree(t *testing.T) {
	n := 40
	if long {
		n = 1000
	}
	kprobe := asNobody(t)
	prog := public(t, testprog.Build(t, "brief"))
	outside := testprog.Start(t, prog)
	for _, verb := range []string{"trace", "stat", "hist"} {
		t.Run(verb, func(t *testing.T) {
			file := prog + "-" + verb
			if err := os.WriteFile(file, nil, 0o666); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, 0o666); err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do %s %s 20 & %[2]s %[3]s 30; wait; i=$((i+1)); done; echo done; exit 7`, n/2, prog, file)
			args := []string{verb, "-x", prog, "-o", os.DevNull, "p:a brief_work n=$arg1:u64"}
			if verb == "hist" {
				args = append(args, "keys=n")
			}
			s := &session{t: t}
			s.start(kprobe(append(args, "--", "/bin/sh", "-c", script)...))
			right(t, outside, "go 10")
			r := s.wait()
			of, sum := (&briefs{t: t, file: file}).counted()
			if r.code != 7 || !strings.Contains(r.stdout, "done\n") || len(of) != n || sum != uint64(25*n) {
				t.Errorf("status %d, %d processes have counted %d calls: %v", r.code, len(of), sum, r.outcome)
			}
			r.counted(t, "a", sum, "jump")
			if all, first, _, _ := met(t, r.stderr); all != n || first != n {
				t.Errorf("%d processes, %d of them first, want %d: %v", all, first, n, r.outcome)
			}
		})
	}
}

// The command may be the program itself; what a signal ends has the status of that, and a command that there is not is said.
func TestExecutableTreeRoot(t *testing.T) {
	prog := testprog.Copy(t, testprog.Build(t, "brief"))
	b := newBriefs(t, prog)
	r := run(t, command(t, "trace", "-x", prog, "--counters", "p:a brief_work", "--", prog, b.file, "20", "5"))
	if r.code != 5 || !strings.Contains(r.stderr, "a hits=20 missed=0 lost=0 tactic=jump") {
		t.Errorf("%v", r)
	}
	r = run(t, command(t, "trace", "-x", prog, "--counters", "p:a brief_work", "--", "/bin/sh", "-c", "kill -TERM $$"))
	if r.code != 128+15 {
		t.Errorf("%v", r)
	}
	fails(t, command(t, "trace", "-x", prog, "p:a brief_work", "--", "/no/such"), 1, "no such file")
}

// A tracer that is killed leaves what it traced running, to the end of the command and of all that this starts.
func TestExecutableTreeKilled(t *testing.T) {
	prog := testprog.Copy(t, testprog.Build(t, "brief"))
	b := newBriefs(t, prog)
	end := tempFile(t, "end")
	script := fmt.Sprintf("i=0; while [ $i -lt 60 ]; do %s %s 20 & %[1]s %[2]s 30; wait; i=$((i+1)); done; echo ended > %[3]s.new; mv %[3]s.new %[3]s", prog, b.file, end)
	s := &session{t: t}
	s.start(command(t, "trace", "-x", prog, "--counters", "p:a brief_work", "--", "/bin/sh", "-c", script))
	within(t, "a process that has ended", func() bool { _, err := os.Stat(b.file); return err == nil })
	_ = s.cmd.Process.Kill()
	<-s.done
	within(t, "the end of the command", func() bool { _, err := os.Stat(end); return err == nil })
	if of, sum := b.counted(); len(of) != 120 || sum != 60*50 {
		t.Errorf("%d processes have counted %d calls", len(of), sum)
	}
}

// A thread that is not its process's first one executes the program; the parent waits in vfork; a stopped job goes on; set-user-ID programs are told of.
func TestExecutableTreeStates(t *testing.T) {
	kprobe := asNobody(t)
	prog := public(t, testprog.Build(t, "brief"))
	file := prog + "-counts"
	if err := errors.Join(os.WriteFile(file, nil, 0o666), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	raised := public(t, "/bin/true")
	if err := os.Chmod(raised, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`
import os, signal, subprocess, threading
if os.fork() == 0:
    threading.Thread(target=lambda: os.execv(%[1]q, [%[1]q, %[2]q, "20"])).start()
    signal.pause()
os.wait()
subprocess.run([%[1]q, %[2]q, "30"], close_fds=False)
pid = os.posix_spawn("/bin/sleep", ["sleep", "100"], {})
os.kill(pid, signal.SIGSTOP)
print(os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]))
os.kill(pid, signal.SIGCONT)
print(os.WIFCONTINUED(os.waitpid(pid, os.WCONTINUED)[1]))
os.kill(pid, signal.SIGKILL)
print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
subprocess.run([%[3]q])
`, prog, file, raised)
	r := run(t, kprobe("trace", "-x", prog, "--counters", "p:a brief_work", "--", "/usr/bin/python3", "-c", script))
	if r.code != 0 || r.stdout != "True\nTrue\n9\n" || !strings.Contains(r.stderr, "a hits=50 missed=0 lost=0 tactic=jump") {
		t.Errorf("%v", r)
	}
	if _, sum := (&briefs{t: t, file: file}).counted(); sum != 50 {
		t.Errorf("the processes have counted %d calls", sum)
	}
	if !strings.Contains(r.stderr, raised+" runs without the rights that its file gives") {
		t.Errorf("it does not tell of the set-user-ID program: %v", r)
	}
}
