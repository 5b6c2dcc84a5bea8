package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/internal/symbol"
)

// usageError is a wrong use of the command: exit status 2.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// isUsage says whether an error is a wrong use of the command and nothing else: also a definition
// that turns out not to be of the language when a target takes it up.
func isUsage(err error) bool {
	var u usageError
	if many, ok := joined(err); ok && !errors.As(err, &u) {
		return !slices.ContainsFunc(many, func(e error) bool { return !isUsage(e) })
	}
	var asked *spanmaker.AskedError
	var e *event.Error
	return errors.As(err, &u) || errors.As(err, &asked) || errors.As(err, &e) && e.Code.Language()
}

// checkVerb refuses a verb that is not known.
func checkVerb(root *cobra.Command, args []string) error {
	if len(args) > 1 && args[0] == "help" {
		args = args[1:]
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return nil
	}
	known := []string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}
	shown := known[:1:1]
	for _, c := range root.Commands() {
		known = append(known, c.Name())
		if !c.Hidden {
			shown = append(shown, c.Name())
		}
	}
	if slices.Contains(known, args[0]) {
		return nil
	}
	return usagef("verb %q is not known%s: see kprobe --help", args[0], symbol.DidYouMean(symbol.Nearest(args[0], shown)))
}

// flagError says what is wrong with a flag, and what would be right.
func flagError(c *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var bad *pflag.InvalidValueError
	switch {
	case errors.As(err, &missing) && strings.HasPrefix(missing.GetSpecifiedShortnames(), ":"):
		def := "-" + missing.GetSpecifiedShortnames()
		return usagef("argument %q begins with a hyphen, as flags do: give a definition that deletes as --delete '%s', or in a file (--probes)", def, def)
	case errors.As(err, &missing):
		name := "--" + missing.GetSpecifiedName()
		if s := missing.GetSpecifiedShortnames(); s != "" {
			name = "-" + s
		}
		return usagef("flag %q is not known%s: see %s --help", name, symbol.DidYouMean(similarFlags(c, name)), c.CommandPath())
	case errors.As(err, &bare):
		return usagef("flag --%s needs a value: %s", bare.GetFlag().Name, bare.GetFlag().Usage)
	case errors.As(err, &bad):
		return usagef("--%s %q: %s", bad.GetFlag().Name, bad.GetValue(), wanted(bad))
	}
	return usageError{err}
}

// wanted says what a flag takes.
func wanted(bad *pflag.InvalidValueError) string {
	if errors.Is(bad, strconv.ErrRange) {
		return "the number is out of range"
	}
	switch bad.GetFlag().Value.Type() {
	case "int":
		return "a whole number is wanted"
	case "uint64":
		return "a whole number from 0 on is wanted"
	case "duration":
		return "a time with its unit is wanted, such as 500ms, 10s or 1h30m"
	case "bool":
		return "true or false is wanted"
	}
	return bad.Unwrap().Error()
}

func similarFlags(c *cobra.Command, name string) []string {
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	return symbol.Nearest(name, known)
}

// version tells which kprobe this is.
func version() string {
	v := "(unknown)"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && v == "(devel)" {
				v += " " + s.Value
			}
		}
	}
	return fmt.Sprintf("%s (%s, %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// noArgs refuses positional arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("argument %q is one too many", args[0])
	}
	return nil
}

// joined takes apart what errors.Join has put together: its text is nothing but theirs.
func joined(err error) ([]error, bool) {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil, false
	}
	var texts []string
	for _, e := range many.Unwrap() {
		texts = append(texts, e.Error())
	}
	return many.Unwrap(), err.Error() == strings.Join(texts, "\n")
}

// atDash parts the arguments of a verb from the command behind --; nil: there is none.
func atDash(c *cobra.Command, args []string) (before, cmd []string) {
	if n := c.ArgsLenAtDash(); n >= 0 {
		return args[:n], args[n:]
	}
	return args, nil
}
