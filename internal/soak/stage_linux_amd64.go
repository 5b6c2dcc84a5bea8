package soak

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/cbuild"
)

// noRandomize is ADDR_NO_RANDOMIZE (linux/personality.h).
const noRandomize = 0x0040000

// Fix runs this program anew without random addresses, for itself and what it starts. It is to
// be called first, and returns in the new run only.
func Fix() error {
	now, _, no := unix.Syscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
	if no != 0 {
		return fmt.Errorf("personality: %w", no)
	}
	if now&noRandomize != 0 {
		return nil
	}
	if _, _, no := unix.Syscall(unix.SYS_PERSONALITY, now|noRandomize, 0, 0); no != 0 {
		return fmt.Errorf("personality: %w", no)
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// Stage is a Work made ready: its program and objects copied, its input made, its output
// known.
type Stage struct {
	*Work
	Objects []*Object // the program first
	dir     string
	program string
	args    []string
	env     []string // of every run
	bare    []string // the same for what valgrind runs, which adds its own
	input   []byte
	halves  [2][]byte
	plain   *outcome
	refs    [2]counts // callgrind's: the whole run, the first half
	ran     counts    // what is known to run
	asked   int       // probes of a round
	size    int
}

// NewStage makes a Work ready in a new directory below dir. size scales the input, 1 is small.
func NewStage(w *Work, dir string, size int) (*Stage, error) {
	s := &Stage{Work: w, dir: filepath.Join(dir, w.Name), size: size}
	if err := s.make(size); err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", w.Name, err)
	}
	return s, nil
}

// Close closes what the stage has opened. The directory stays.
func (s *Stage) Close() {
	for _, o := range s.Objects {
		o.close()
	}
}

func (s *Stage) make(size int) error {
	if err := os.MkdirAll(filepath.Join(s.dir, "lib"), 0o755); err != nil {
		return err
	}
	path, err := s.locate()
	if err != nil {
		return err
	}
	if s.program, err = cbuild.Copy(s.dir, path); err != nil {
		return err
	}
	if err := s.open(s.program, true); err != nil {
		return err
	}
	if err := s.copyObjects(); err != nil {
		return err
	}
	if err := s.environment(); err != nil {
		return err
	}
	if s.Input != nil {
		if s.input, err = s.Input(s, size); err != nil {
			return err
		}
		if len(s.input) > 2*pipeSize {
			return fmt.Errorf("input of %d bytes: a pipe holds %d", len(s.input), pipeSize)
		}
		n := s.half(s.input)
		s.halves = [2][]byte{s.input[:n], s.input[n:]}
	}
	s.args = slices.Clone(s.Args)
	if s.plain, err = s.without(); err != nil {
		return err
	}
	if s.Check != nil {
		if err := s.Check(s, s.plain); err != nil {
			return fmt.Errorf("without probes: %w; %s, it says %q", err, s.plain.status, s.plain.stderr)
		}
	}
	return nil
}

// locate finds the program's file.
func (s *Stage) locate() (string, error) {
	path := s.Path
	if s.Find != nil {
		p, err := s.Find()
		if err != nil {
			return "", err
		}
		path = p
	}
	p, err := exec.LookPath(path)
	if err != nil {
		return "", fmt.Errorf("%w: apt-get install %s", err, s.Package)
	}
	return filepath.EvalSymlinks(p)
}

func (s *Stage) open(path string, main bool) error {
	o, err := openObject(path, main)
	if err == nil {
		s.Objects = append(s.Objects, o)
	}
	return err
}

// needed is a line of ldd that names an object found in the file system.
var needed = regexp.MustCompile(`(?m)^\s*(\S+) => (/\S+) \(`)

// copyObjects copies the shared objects that the program maps at its start.
func (s *Stage) copyObjects() error {
	out, err := exec.Command("ldd", s.program).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return fmt.Errorf("ldd: %w: %s", err, out)
	}
	for _, m := range needed.FindAllSubmatch(out, -1) {
		to := filepath.Join(s.dir, "lib", string(m[1]))
		b, err := os.ReadFile(string(m[2]))
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			return err
		}
		if err := s.open(to, false); err != nil {
			return err
		}
	}
	return nil
}

// environment makes every run's environment: what a program sees under valgrind, which adds a
// few words of its own.
func (s *Stage) environment() error {
	s.bare = append([]string{
		"HOME=" + s.dir, "PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC",
		"LD_LIBRARY_PATH=" + filepath.Join(s.dir, "lib"),
	}, s.Env...)
	if s.Vars != nil {
		more, err := s.Vars(s)
		if err != nil {
			return err
		}
		s.bare = append(s.bare, more...)
	}
	s.env = s.bare
	if s.Referee != Callgrind {
		return nil
	}
	tool, err := valgrind()
	if err != nil {
		return err
	}
	cmd := exec.Command(tool, "--tool=none", "-q", "/usr/bin/env", "-0")
	cmd.Env, cmd.Dir = s.bare, s.dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	s.env = strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	return nil
}

// valgrind finds valgrind's program: Debian's command is a script that changes the environment.
func valgrind() (string, error) {
	for _, name := range []string{"valgrind.bin", "valgrind"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", errors.New("valgrind is missing: apt-get install valgrind")
}

// fresh makes the directory that a run works in.
func (s *Stage) fresh() (string, error) {
	dir := filepath.Join(s.dir, "work")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for name, text := range s.Files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// key names all that a count depends on: program, objects, input, arguments, environment.
func (s *Stage) key(more ...string) (string, error) {
	h := sha256.New()
	for _, o := range s.Objects {
		b, err := os.ReadFile(o.Path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", o.Name, len(b), b)
	}
	fmt.Fprintf(h, "%q %q %q %q %q", s.args, s.bare, s.Files, s.halves, more)
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// object finds an object by its base name.
func (s *Stage) object(name string) *Object {
	for _, o := range s.Objects {
		if o.Name == name {
			return o
		}
	}
	return nil
}
