package soak

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Program is a program with a known output, or a server with clients that check what they get,
// to which the command kprobe comes again and again while it runs (Visits).
type Program struct {
	Name     string
	Packages []string // Debian's, of all that it needs
	// Prepare makes what is to run in a directory of its own. size is how long it runs: 1 is some
	// seconds.
	Prepare func(dir string, size int) (*Command, error)
	// Objects are shared objects, without .so and version, that are probed beside the program's file
	// and the C library.
	Objects []string
	// Serve, of a server, has clients use it until they are done, and returns what they have found.
	// Stop then ends the server as its users do.
	Serve func(c *Command) (string, error)
	Stop  func(c *Command, pid int) error
}

// Command is a program that is ready to run.
type Command struct {
	Args     []string // the first is the path
	Dir      string
	Out      string // a file in Dir that belongs to the output
	Port     int    // of a server, on the loopback interface
	UID, GID uint32 // who runs it
	Size     int
}

// compiled makes a Prepare that compiles a file of testdata into the program main. In args %s stands for
// the source; count is the program's argument.
func compiled(name string, count int, args ...string) func(string, int) (*Command, error) {
	return func(dir string, size int) (*Command, error) {
		if err := tool(dir, sourced(dir, name, args)...); err != nil {
			return nil, err
		}
		return &Command{Args: []string{filepath.Join(dir, "main"), fmt.Sprint(count * size)}, Dir: dir}, nil
	}
}

// interpreted makes a Prepare for a script of testdata that an interpreter runs: args are the
// interpreter's, with %s for the script; count is the script's argument.
func interpreted(name string, count int, args ...string) func(string, int) (*Command, error) {
	return func(dir string, size int) (*Command, error) {
		args := sourced(dir, name, args)
		var err error
		if args[0], err = program(args[0]); err != nil {
			return nil, err
		}
		return &Command{Args: append(args, fmt.Sprint(count*size)), Dir: dir}, nil
	}
}

// sourced writes a file of testdata and puts its path into arguments.
func sourced(dir, name string, args []string) []string {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(file(name)), 0o644); err != nil {
		return []string{"/bin/sh", "-c", "echo cannot write " + name + "; exit 1"}
	}
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.ReplaceAll(a, "%s", path)
	}
	return out
}

// program finds a program's file behind the links that lead to it.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// tool runs a command to its end.
func tool(dir string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// missing says which of Debian's packages are not installed.
func (p *Program) missing() error {
	var out []error
	for _, name := range p.Packages {
		if err := exec.Command("dpkg", "-s", name).Run(); err != nil {
			out = append(out, fmt.Errorf("%s needs Debian's package %s: apt-get install --no-install-recommends %s", p.Name, name, name))
		}
	}
	return errors.Join(out...)
}

// Programs are all programs for visits.
func Programs() []*Program {
	return []*Program{
		{Name: "ocaml", Packages: []string{"ocaml-nox"}, Prepare: compiled("life.ml", 6000, "ocamlopt", "-o", "main", "%s")},
		{Name: "haskell", Packages: []string{"ghc"}, Prepare: compiled("life.hs", 2000, "ghc", "-v0", "-O", "-threaded", "-o", "main", "%s")},
		{Name: "node", Packages: []string{"nodejs"}, Prepare: interpreted("life.js", 700, "node", "%s")},
		{Name: "jitless", Packages: []string{"nodejs"}, Prepare: interpreted("life.js", 700, "node", "--jitless", "%s")},
		{Name: "threads", Packages: []string{"python3"}, Prepare: interpreted("life.py", 300, "/usr/bin/python3", "-S", "-B", "%s")},
		{Name: "postgres", Packages: []string{"postgresql"}, Prepare: preparePostgres, Serve: servePostgres, Stop: stopPostgres},
		{Name: "java", Packages: []string{"openjdk-17-jdk-headless"}, Prepare: prepareJava, Objects: []string{"libjvm"}},
		{Name: "nginx", Packages: []string{"nginx-light"}, Prepare: prepareNginx, Serve: serveNginx, Stop: stopNginx},
		{
			Name: "guile", Packages: []string{"guile-3.0"}, Objects: []string{"libguile-3.0"},
			Prepare: interpreted("life.scm", 2000, "guile", "--no-auto-compile", "%s"),
		},
		{Name: "sbcl", Packages: []string{"sbcl"}, Prepare: interpreted("life.lisp", 3000, "sbcl", "--script", "%s")},
		{Name: "cc1", Packages: []string{"gcc"}, Prepare: prepareCC1},
	}
}

func prepareJava(dir string, size int) (*Command, error) {
	if err := tool(dir, sourced(dir, "Life.java", []string{"javac", "-d", dir, "%s"})...); err != nil {
		return nil, err
	}
	java, err := program("java")
	return &Command{Args: []string{java, "-cp", dir, "Life", fmt.Sprint(1000 * size)}, Dir: dir}, err
}

// prepareCC1 has the compiler proper translate a unit that grows with size.
func prepareCC1(dir string, size int) (*Command, error) {
	unit := sourced(dir, "unit.c", []string{"gcc", "-E", "-P", fmt.Sprintf("-DSIZE=%d", size), "-o", "unit.i", "%s"})
	if err := tool(dir, unit...); err != nil {
		return nil, err
	}
	cc1, err := exec.Command("gcc", "-print-prog-name=cc1").Output()
	if err != nil {
		return nil, fmt.Errorf("gcc -print-prog-name=cc1: %w", err)
	}
	args := []string{string(bytes.TrimSpace(cc1)), "-quiet", "-fpreprocessed", "-O2", "unit.i", "-o", "unit.s"}
	return &Command{Args: args, Dir: dir, Out: "unit.s"}, nil
}
