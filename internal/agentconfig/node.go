package agentconfig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is what is wrong at a place of the file.
type Error struct {
	Line, Column int // from 1
	Words        string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Words)
}

// reader collects what is wrong.
type reader struct{ errs []*Error }

// refuse notes that something is wrong at a place.
func (r *reader) refuse(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, &Error{max(n.Line, 1), max(n.Column, 1), fmt.Sprintf(format, args...)})
}

// err gives all that is wrong, in the order of the file.
func (r *reader) err() error {
	slices.SortStableFunc(r.errs, func(a, b *Error) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
	var all []error
	for _, e := range r.errs {
		all = append(all, e)
	}
	return errors.Join(all...)
}

// kinds are the kinds of values, as errors call them.
var kinds = map[yaml.Kind]string{yaml.MappingNode: "keys and values", yaml.SequenceNode: "a list", yaml.ScalarNode: "one value", yaml.AliasNode: "an alias"}

// is says whether a value is of a kind, and refuses it if not.
func (r *reader) is(n *yaml.Node, want yaml.Kind, of string) bool {
	switch {
	case n.Kind == want:
		return true
	case n.Kind == yaml.AliasNode:
		r.refuse(n, "%s: *%s is an alias: write the value itself", of, n.Value)
	default:
		r.refuse(n, "%s: %s is wanted, not %s", of, kinds[want], kinds[n.Kind])
	}
	return false
}

// keys hands each value of a mapping to who reads it. of names the mapping in errors.
func (r *reader) keys(n *yaml.Node, of string, read map[string]func(*yaml.Node)) {
	r.each(n, of, func(k, v *yaml.Node) {
		if f := read[k.Value]; f != nil {
			f(v)
			return
		}
		r.refuse(k, "%s: there is no key %q: write one of %s", of, k.Value, strings.Join(slices.Sorted(maps.Keys(read)), ", "))
	})
}

// each hands out the keys of a mapping with their values. A key that is there twice is refused.
func (r *reader) each(n *yaml.Node, of string, f func(k, v *yaml.Node)) {
	if !r.is(n, yaml.MappingNode, of) {
		return
	}
	at := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		switch first, twice := at[k.Value]; {
		case k.Kind != yaml.ScalarNode:
			r.refuse(k, "%s: a key is one word", of)
		case twice:
			r.refuse(k, "%s: key %q is there twice, first in line %d: leave one out", of, k.Value, first)
		default:
			at[k.Value] = k.Line
			f(k, n.Content[i+1])
		}
	}
}

// list hands out the values of a list.
func (r *reader) list(n *yaml.Node, of string, f func(*yaml.Node)) {
	if !r.is(n, yaml.SequenceNode, of) {
		return
	}
	if len(n.Content) == 0 {
		r.refuse(n, "%s: the list is empty: write at least one", of)
	}
	for _, one := range n.Content {
		f(one)
	}
}

// text reads a text, which must not be empty.
func (r *reader) text(n *yaml.Node, of string) string {
	if !r.is(n, yaml.ScalarNode, of) {
		return ""
	}
	if n.Value == "" || n.Tag == "!!null" {
		r.refuse(n, "%s: a value is missing", of)
		return ""
	}
	return n.Value
}

// into is a reader of a text.
func (r *reader) into(to *string, of string) func(*yaml.Node) {
	return func(n *yaml.Node) { *to = r.text(n, of) }
}

// texts reads names with their texts.
func (r *reader) texts(n *yaml.Node, of string, check func(k *yaml.Node)) map[string]string {
	out := map[string]string{}
	r.each(n, of, func(k, v *yaml.Node) {
		check(k)
		out[k.Value] = r.text(v, of+" "+k.Value)
	})
	return out
}
