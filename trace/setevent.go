package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
)

// Events lists events as GRP:EVENT, the newest first, as the kernel does; if enabled, only those that are enabled.
func (in *Instance) Events(enabled bool) (out []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, e := range in.order {
		if !enabled || in.enabled(e) {
			out = append(out, e.group+":"+e.name)
		}
	}
	slices.Reverse(out)
	return out
}

// SetEvents enables the events that words name, each GRP:EVENT, GRP: or EVENT, with * ? [] in both, or disables those of a word with !
// before it, as a write to set_event does. EINVAL: a word names no event; those before it stay as they were made.
func (in *Instance) SetEvents(words string) error {
	for _, w := range strings.Fields(words) {
		if err := in.setEvents(w); err != nil {
			return err
		}
	}
	return nil
}

func (in *Instance) setEvents(word string) error {
	match, off := strings.CutPrefix(word, "!")
	group, name, ok := strings.Cut(match, ":")
	found := false
	for _, e := range in.Events(false) {
		g, n, _ := strings.Cut(e, ":")
		fits := like(group, g) && like(name, n)
		if !ok { // the word may be either
			fits = like(match, g) || like(match, n)
		}
		if !fits {
			continue
		}
		found = true
		if err := in.Enable(g, n, !off); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	if !found {
		return errno.Errorf(unix.EINVAL, "%q names no event", word)
	}
	return nil
}

// like says whether a name fits a pattern; an empty one lets all fit.
func like(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return pattern == "" || err == nil && ok
}

// WriteFunctions writes available_filter_functions: the functions that the target has, in the order of their addresses in each object,
// with the object behind those of others than the program itself.
func (in *Instance) WriteFunctions(w io.Writer) error {
	bw := bufio.NewWriter(w)
	for _, r := range engine.Of(in.core).Matching("*:*") {
		_, _ = bw.WriteString(r.Func.Name) // Flush tells
		if !r.Module.Main {
			_, _ = fmt.Fprintf(bw, " [%s]", r.Module.Name)
		}
		_ = bw.WriteByte('\n')
	}
	return bw.Flush()
}
