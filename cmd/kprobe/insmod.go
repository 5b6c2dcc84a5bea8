package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/modules"
)

// moduleVerb is a run of a verb about the modules of a process, or of a guest's kernel.
type moduleVerb struct {
	con     *console
	of      subject
	aliases []string // NAME=FUNCTION
}

// run does something with the modules of the target, in whoever holds it. create: they are to be there, and somebody is to hold it for them.
func (v *moduleVerb) run(create bool, do func(*modules.Table) error) error {
	switch ok, err := v.of.named(); {
	case err != nil:
		return err
	case !ok:
		return usagef("give the process: -p PID, or --guest SPEC for a guest's kernel")
	case v.of.kernel:
		return usagef("-k: the kernel that runs here has modules of its own: insmod(8), rmmod(8), lsmod(8), dmesg(1)")
	case v.con.host == nil:
		ok, err := v.con.elsewhere(&v.of, create)
		if ok || err != nil {
			return err
		}
		if h, err := v.con.holderOf(&v.of); err == nil && h == nil && !create {
			return do(nil)
		}
		return (&knob{con: v.con, of: v.of}).noUser()
	}
	return v.con.host.withModules(asked{con: v.con, of: &v.of}, create, do)
}

const insmodHelp = `Load a module of C into a running process: its start (module_init) runs there, on a thread of its own,
and the handlers of the probes that it registers run in the process, at the hit. With --guest load it
into a guest's kernel: its start runs there on a task that makes a system call. FILE is an object
that a compiler has made with the headers of kprobe cc, or a source file in C, which kprobe compiles
with gcc, or with what the variable CC names. PARAM=VALUE sets a parameter of the module. The module
stays until kprobe rmmod, or until kprobe detach takes everything out.`

func newInsmod(con *console) *cobra.Command {
	v := &moduleVerb{con: con}
	c := &cobra.Command{
		Use: "insmod (-p PID | --guest SPEC) FILE [PARAM=VALUE]…", Short: "load a module of C into a process, or a guest's kernel", Long: insmodHelp,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("give the module: a file that ends in .o or .ko, or in .c")
			}
			return v.insert(args[0], args[1:])
		},
	}
	v.of.flags(c)
	c.Flags().StringArrayVar(&v.aliases, "alias", nil, "`NAME=FUNCTION`: what the module calls NAME is the target's FUNCTION; may be repeated")
	return c
}

// aliased are the aliases by the names that the module uses.
func (v *moduleVerb) aliased() (map[string]string, error) {
	m := map[string]string{}
	for _, a := range v.aliases {
		name, function, _ := strings.Cut(a, "=")
		if name == "" || function == "" {
			return nil, usagef("--alias %q: write NAME=FUNCTION, what the module calls it and what the target does", a)
		}
		if _, ok := m[name]; ok {
			return nil, usagef("--alias %q: %s has an alias already", a, name)
		}
		m[name] = function
	}
	return m, nil
}

// insert is insmod.
func (v *moduleVerb) insert(file string, params []string) error {
	aliases, err := v.aliased()
	if err != nil {
		return err
	}
	var ps []kmod.Param
	for _, p := range params {
		ps = append(ps, kmod.ParseParam(p))
	}
	return withObject(file, func(object string) error {
		if object != file { // the holder is asked for what was compiled here, where the user is
			v.con.args = slices.Clone(v.con.args)
			v.con.args[slices.Index(v.con.args, file)] = object
		}
		return v.run(true, func(t *modules.Table) error {
			o, err := v.con.object(object)
			if err != nil {
				return err
			}
			_, older := v.lines(t)
			if err = t.Insert(kmod.Name(object), o, ps, aliases); err != nil { // what its start has written says why, and the log may go with it
				lines, all := v.lines(t)
				v.print(v.con.stderr, lines[len(lines)-min(all-older, len(lines)):])
			}
			return err
		})
	})
}

// withObject does something with an object, which is compiled first if the file is a source.
func withObject(file string, do func(object string) error) error {
	if !strings.HasSuffix(file, ".c") {
		return do(file)
	}
	dir, err := os.MkdirTemp("", "kprobe-module-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	object, err := compileModule(dir, file)
	if err != nil {
		return err
	}
	return do(object)
}

// object reads an object.
func (c *console) object(file string) (*kmod.Object, error) {
	b, err := os.ReadFile(c.path(file))
	if err != nil {
		return nil, c.pathError(err, file)
	}
	o, err := kmod.Parse(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return o, nil
}

// compileModule compiles a module's source to an object in a directory.
func compileModule(dir, source string) (object string, err error) {
	object, warnings, err := kmod.Compile(dir, source)
	if err != nil {
		return "", err
	}
	_, err = os.Stderr.Write(warnings)
	return object, err
}

func newRmmod(con *console) *cobra.Command {
	v := &moduleVerb{con: con}
	c := &cobra.Command{
		Use: "rmmod (-p PID | --guest SPEC) MODULE", Short: "remove a module from a process, or a guest's kernel",
		Long: "Runs the end (module_exit) of a module that kprobe insmod has loaded, takes out the probes that it has left, waits until nobody runs its handlers, and removes it. The log goes with the last module: then the lines that its end has written are printed.",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("give one module")
			}
			return v.run(false, func(t *modules.Table) error {
				if t == nil {
					return fmt.Errorf("%s has no modules", v.of.name())
				}
				_, older := v.lines(t)
				if err := t.Remove(kmod.Name(args[0])); err != nil {
					return err
				}
				if lines, all := v.lines(t); t.Empty() { // the log goes with it
					v.print(v.con.table, lines[len(lines)-min(all-older, len(lines)):])
				}
				return nil
			})
		},
	}
	v.of.flags(c)
	return c
}

func newLsmod(con *console) *cobra.Command {
	v := &moduleVerb{con: con}
	c := &cobra.Command{
		Use: "lsmod (-p PID | --guest SPEC)", Short: "list the modules of a process, or a guest's kernel",
		Long: "Lists the modules that kprobe insmod has loaded into a process or a guest's kernel, the last one first: name, bytes of memory, and how many others use it, which is none; [permanent] is one without an end.", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return v.run(false, func(t *modules.Table) error {
				fmt.Fprintln(con.table, "Module                  Size  Used by")
				if t == nil {
					return nil
				}
				for _, m := range t.List() {
					by := ""
					if m.Permanent() {
						by = " [permanent]"
					}
					fmt.Fprintf(con.table, "%-19s %8d  0%s\n", m.Name, m.Size, by)
				}
				return nil
			})
		},
	}
	v.of.flags(c)
	return c
}

func newDmesg(con *console) *cobra.Command {
	v := &moduleVerb{con: con}
	c := &cobra.Command{
		Use: "dmesg (-p PID | --guest SPEC)", Short: "print what the modules of a process, or a guest's kernel, have written",
		Long: "Prints the lines that modules have written with printk, and those about them: seconds since the machine's start, or the guest's, and the text.", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return v.run(false, func(t *modules.Table) error {
				if t == nil {
					return nil
				}
				lines, all := v.lines(t)
				if gone := all - len(lines); gone > 0 {
					fmt.Fprintf(con.stderr, "kprobe: %d older lines are gone\n", gone)
				}
				v.print(v.con.table, lines)
				return nil
			})
		},
	}
	v.of.flags(c)
	return c
}

// lines gives the lines of the log, once all that has been written by now is in it, and how many there ever were.
func (v *moduleVerb) lines(t *modules.Table) (lines []modules.Line, all int) {
	v.con.host.poll()
	time.Sleep(records.SettleTime)
	v.con.host.poll()
	lines, dropped := t.Log().Lines()
	return lines, len(lines) + int(dropped)
}

func (v *moduleVerb) print(to io.Writer, lines []modules.Line) {
	for _, l := range lines {
		fmt.Fprintf(to, "[%5d.%06d] %s\n", l.Nanos/1e9, l.Nanos/1e3%1e6, l.Text)
	}
}

func newModinfo(con *console) *cobra.Command {
	return &cobra.Command{
		Use: "modinfo FILE", Short: "print what a module tells of itself",
		Long: "Prints what a module's object tells of itself: MODULE_LICENSE, MODULE_DESCRIPTION, parameters and the like. FILE is an object, or a source file in C.",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("give one file")
			}
			return withObject(args[0], func(object string) error {
				o, err := con.object(object)
				if err == nil {
					printInfo(con.table, args[0], o)
				}
				return err
			})
		},
	}
}

func printInfo(w io.Writer, file string, o *kmod.Object) {
	line := func(tag, text string) { fmt.Fprintf(w, "%-16s%s\n", tag+":", text) }
	line("filename", file)
	types := map[string]string{}
	for _, i := range o.Info {
		if i.Tag == kmod.TagParamType {
			name, kind, _ := strings.Cut(i.Text, ":")
			types[name] = kind
		}
	}
	told := map[string]bool{}
	for _, i := range o.Info {
		switch i.Tag {
		case kmod.TagParamType:
		case kmod.TagParam:
			name, _, _ := strings.Cut(i.Text, ":")
			told[name] = true
			if kind := types[name]; kind != "" {
				i.Text += " (" + kind + ")"
			}
			line(i.Tag, i.Text)
		default:
			line(i.Tag, i.Text)
		}
	}
	for _, text := range o.Tagged(kmod.TagParamType) {
		if name, kind, _ := strings.Cut(text, ":"); !told[name] {
			line(kmod.TagParam, name+":"+kind)
		}
	}
	line("name", kmod.Name(file))
}

func newCC() *cobra.Command {
	return &cobra.Command{
		Use: "cc [FILE.c [-o FILE.o] [FLAG]…]", Short: "compile a module of C", DisableFlagParsing: true,
		Long: "Compiles a module's source to an object for kprobe insmod, with gcc or with what the variable CC names; without a file it prints the flags, and writes the headers to a directory of the cache that they name.",
		RunE: func(_ *cobra.Command, args []string) error { return ccRun(args) },
	}
}

// ccRun is the verb cc.
func ccRun(args []string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	headers, err := kmod.KeepHeaders(filepath.Join(cache, "kprobes"))
	if err != nil {
		return err
	}
	source := ""
	for _, a := range args {
		if strings.HasSuffix(a, ".c") {
			source = a
		}
	}
	if source == "" {
		if len(args) > 0 {
			return usagef("give a file that ends in .c, or nothing")
		}
		fmt.Fprintln(stdout, strings.Join(kmod.Flags("NAME", headers), " "))
		return nil
	}
	words := slices.Concat(kmod.Compiler(), kmod.Flags(kmod.Name(source), headers), []string{"-c"}, args)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return statusError(exit.ExitCode())
	}
	return err
}
