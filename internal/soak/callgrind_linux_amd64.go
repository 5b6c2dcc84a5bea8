package soak

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/cbuild"
)

// place is an instruction: the base name of its file and its link-time address.
type place struct {
	obj  string
	addr uint64
}

func (p place) String() string { return fmt.Sprintf("%s:0x%x", p.obj, p.addr) }

// counts say how often instructions ran.
type counts map[place]uint64

// callgrind gives the counts of a whole run, or (half) of one that is ended where the program
// waits for the second half of its input.
func (s *Stage) callgrind(half bool) (counts, error) {
	tool, err := valgrind()
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(tool)
	if err != nil {
		return nil, err
	}
	key, err := s.key(strconv.FormatBool(half), st.ModTime().String())
	if err != nil {
		return nil, err
	}
	name, err := cbuild.Cached("callgrind."+s.Name, key, func(out string) error { return s.runCallgrind(tool, out, half) })
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := readCallgrind(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func (s *Stage) runCallgrind(tool, to string, half bool) error {
	args := append([]string{
		"--tool=callgrind", "--vgdb=no", "--dump-instr=yes", "--compress-pos=no", "--compress-strings=no",
		"--callgrind-out-file=" + to, "--log-file=" + filepath.Join(s.dir, "valgrind.log"), s.program,
	}, s.args...)
	var middle func(int) error
	if half {
		// No program here handles it, and callgrind writes its counts when it ends.
		middle = func(pid int) error { return unix.Kill(pid, unix.SIGUSR1) }
	}
	o, err := s.command(tool, args, s.bare, middle)
	if err != nil {
		return err
	}
	if half {
		return nil
	}
	if d := o.differs(s.plain); d != "" {
		return fmt.Errorf("the program under callgrind: %s", d)
	}
	return nil
}

// readCallgrind reads the counts of a profile that was written with --dump-instr=yes and
// without compression (callgrind's manual, "Callgrind Format Specification"). The line after
// one that begins with calls= has the cost of the callee.
func readCallgrind(r io.Reader) (counts, error) {
	out := counts{}
	obj, callee := "", false
	var sum, total uint64
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "ob="):
			obj = filepath.Base(line[3:])
		case strings.HasPrefix(line, "calls="):
			callee = true
		case strings.HasPrefix(line, "totals: "):
			total, _ = strconv.ParseUint(line[8:], 10, 64)
		case strings.HasPrefix(line, "0x"):
			if callee {
				callee = false
				continue
			}
			f := strings.Fields(line)
			if len(f) != 3 {
				return nil, fmt.Errorf("callgrind's line %q", line)
			}
			addr, err := strconv.ParseUint(f[0], 0, 64)
			n, err2 := strconv.ParseUint(f[2], 10, 64)
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			out[place{obj, addr}] += n
			sum += n
		}
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if sum == 0 || sum != total {
		return nil, fmt.Errorf("callgrind's instructions add up to %d, it says %d", sum, total)
	}
	return out, nil
}
