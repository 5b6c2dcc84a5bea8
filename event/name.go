package event

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Namer makes names for events that have none, no two alike. The zero value is ready.
// It is not safe for concurrent use.
type Namer struct {
	used map[string]int // by how many events
	next map[string]int // of a base name: the number to try
}

// Reserve takes a name out, once more if it was; it says whether the name was free.
func (n *Namer) Reserve(name string) bool {
	if n.used == nil {
		n.used, n.next = map[string]int{}, map[string]int{}
	}
	n.used[name]++
	return n.used[name] == 1
}

// Release undoes a Reserve, or a Unique. The name is free again when all are undone.
func (n *Namer) Release(name string) {
	if n.used[name] > 1 {
		n.used[name]--
		return
	}
	delete(n.used, name)
}

// Name gives a definition's event a name at a place, which for a pattern is one of the
// functions that match and else d.Place: p_SYM_OFFSET, r_SYM_OFFSET, w_SYM_OFFSET, p_0xADDR, or
// p_BASENAME_0xOFFSET of an offset in a file, with Def.Uprobe of returns too and the name of the file up to its first dot, hyphen or underscore; with Def.Function SYM__entry or SYM__exit. Every byte that no identifier holds is `_`;
// names that are too long are cut to 63 bytes; a name that is taken gets a number.
func (n *Namer) Name(d *Def, at Place) string { return n.Unique(d.BaseName(at)) }

// Unique makes a name of what BaseName gives.
func (n *Namer) Unique(base string) string {
	name := cut(base, MaxName)
	for n.used[name] > 0 {
		i := max(n.next[base], 1) + 1
		n.next[base] = i
		num := fmt.Sprintf("_%d", i)
		name = cut(base, MaxName-len(num)) + num
	}
	n.Reserve(name)
	return name
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// BaseName is what Name cuts, and tells from other names. It may be called by several goroutines at
// once.
func (d *Def) BaseName(p Place) string {
	if d.Uprobe {
		return uprobeBase(p)
	}
	prefix, module := "p_", ""
	switch d.Kind {
	case Return:
		prefix = "r_"
	case Watch:
		prefix = "w_"
	}
	if p.Module != "" {
		module = path.Base(p.Module) + ":"
	}
	if d.Function {
		return identifier(module, p.Symbol, [...]string{"__entry", "__exit"}[d.Kind])
	}
	switch p.Kind {
	case PlaceAddr:
		return identifier(prefix, module, fmt.Sprintf("0x%x", p.Addr))
	case PlaceFile:
		return identifier(prefix, path.Base(p.Path), fmt.Sprintf("_0x%x", p.Addr))
	case PlaceLine:
		return identifier(prefix, path.Base(p.Path), fmt.Sprintf("_%d", p.Line))
	}
	return identifier(prefix, module, p.Symbol, "_", strconv.FormatInt(int64(p.Offset), 10))
}

// identifier joins strings, and turns every byte that no C identifier holds into `_`.
func identifier(parts ...string) string {
	b := make([]byte, 0, 128) // more than most need: not of the heap
	for _, s := range parts {
		b = append(b, s...)
	}
	for i, c := range b {
		if !isWord(c) {
			b[i] = '_'
		}
	}
	if len(b) > 0 && isDigit(b[0]) {
		b[0] = '_'
	}
	return string(b)
}

// uprobeBase is a name made of a place: that of the file up to its first dot, hyphen or underscore, and the offset.
func uprobeBase(p Place) string {
	base := path.Base(p.Path)
	if i := strings.IndexAny(base, ".-_"); i >= 0 {
		base = base[:i]
	}
	return identifier("p_", base, fmt.Sprintf("_0x%x", p.Addr))
}
