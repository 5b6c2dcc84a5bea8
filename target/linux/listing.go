package linux

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/arch/native"
)

// entryOf is a line of kprobe_events: KIND:GROUP/EVENT PLACE ARGS.
type entryOf struct {
	group, name string
	ret         bool
	place       string
}

// parseEvents reads kprobe_events. Lines that are no probes are left out.
func parseEvents(text string) []entryOf {
	var out []entryOf
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kind, name, ok := strings.Cut(f[0], ":")
		group, event, named := strings.Cut(name, "/")
		if ok && named && kind != "" {
			out = append(out, entryOf{group, event, kind[0] == 'r', f[1]})
		}
	}
	return out
}

// profiled are the counts of an event: hits and missed.
type profiled struct{ hits, missed uint64 }

// parseProfile reads kprobe_profile, whose lines are those of kprobe_events in the same
// order: it names no groups, so each line's event must be the same one's.
func parseProfile(text string, events []entryOf) (map[string]profiled, error) {
	out := map[string]profiled{}
	i := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("kprobe_profile: line %q", line)
		}
		if i == len(events) || events[i].name != f[0] {
			return nil, fmt.Errorf("kprobe_profile: line %q is not that of event %d of kprobe_events", line, i+1)
		}
		hits, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("kprobe_profile: %w", err)
		}
		missed, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("kprobe_profile: %w", err)
		}
		key := events[i].group + "/" + events[i].name
		p := out[key]
		out[key] = profiled{p.hits + hits, p.missed + missed}
		i++
	}
	if i != len(events) {
		return nil, fmt.Errorf("kprobe_profile: %d lines for %d events", i, len(events))
	}
	return out, nil
}

// parseLost sums up what a CPU's stats file tells of records that were not kept.
func parseLost(text string) (n uint64) {
	for line := range strings.Lines(text) {
		name, v, _ := strings.Cut(line, ":")
		switch name {
		case "overrun", "commit overrun", "dropped events":
			k, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			n += k
		}
	}
	return n
}

// placed is a line of debugfs's kprobes/list.
type placed struct {
	addr  uint64
	ret   bool
	state string // [GONE][DISABLED][OPTIMIZED][FTRACE], as far as they apply
	line  string
}

func parseList(text string) []placed {
	var out []placed
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		addr, err := strconv.ParseUint(strings.TrimPrefix(f[0], "0x"), 16, 64)
		if err != nil {
			continue
		}
		p := placed{addr: addr, ret: f[1] == "r", line: strings.TrimRight(line, " \n")}
		if i := strings.IndexByte(line, '['); i >= 0 {
			p.state = strings.TrimSpace(line[i:])
		}
		out = append(out, p)
	}
	return out
}

// stands says whether an entry's place is the one of a line of the list, which may have
// another name for it. A probe on a function stands behind its ENDBR, if it has one.
func (p *placed) stands(e *entryOf, syms places) bool {
	if p.ret != e.ret {
		return false
	}
	if addr, err := strconv.ParseUint(e.symbol(), 0, 64); err == nil {
		return addr == p.addr
	}
	sym, off := splitPlace(e.symbol())
	return slices.ContainsFunc(syms[sym], func(a uint64) bool { return a+off == p.addr || off == 0 && a+4 == p.addr })
}

// symbol is the entry's place without its module.
func (e *entryOf) symbol() string { return e.place[strings.LastIndexByte(e.place, ':')+1:] }

// places are the addresses of symbols: a name may have several.
type places map[string][]uint64

// placesOf finds the symbols that entries name.
func placesOf(events []entryOf, syms symbols) places {
	out := places{}
	for i := range events {
		sym, _ := splitPlace(events[i].symbol())
		out[sym] = nil
	}
	for i := range syms {
		if _, ok := out[syms[i].name]; ok {
			out[syms[i].name] = append(out[syms[i].name], syms[i].addr)
		}
	}
	return out
}

// splitPlace parts SYMBOL+OFFSET.
func splitPlace(s string) (sym string, off uint64) {
	sym, num, ok := strings.Cut(s, "+")
	if !ok {
		return s, 0
	}
	off, _ = strconv.ParseUint(num, 0, 64)
	return sym, off
}

// tactic is how a hit of a probe comes, by its state in the list.
func (p *placed) tactic() string {
	switch {
	case strings.Contains(p.state, "[GONE]"):
		return "none"
	case strings.Contains(p.state, "[FTRACE]"):
		return "ftrace"
	case strings.Contains(p.state, "[OPTIMIZED]"):
		return "jump"
	}
	return native.BreakpointName
}

// share parts what was lost among the events: the kernel says only how much it was in all.
// over is what the kernel counted of each event and we did not read, our own hits among it.
func share(lost uint64, over []uint64) []uint64 {
	var all, given uint64
	most := 0
	for i, n := range over {
		all += n
		if n > over[most] {
			most = i
		}
	}
	out := make([]uint64, len(over))
	if len(over) == 0 {
		return out
	}
	for i, n := range over {
		if all > 0 {
			hi, lo := bits.Mul64(lost, n)
			out[i], _ = bits.Div64(hi, lo, all)
			given += out[i]
		}
	}
	out[most] += lost - given
	return out
}
