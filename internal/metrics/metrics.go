// Package metrics writes counts and histograms for Prometheus and its kin: in the text exposition format 0.0.4, and as OpenMetrics 1.0. It knows
// nothing of who counts, nor of who asks.
package metrics

import (
	"fmt"
	"strings"
)

// Kind is what a family is.
type Kind uint8

// The kinds.
const (
	Counter Kind = iota
	Gauge
	Histogram
)

func (k Kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// Label is a label of a series. A value may be any text.
type Label struct{ Name, Value string }

// Sample is a series of a family, or all series of a histogram that have its labels.
type Sample struct {
	Labels  []Label
	Value   Number   // of a counter or a gauge
	Buckets []Bucket // of a histogram, smallest bound first, without that of all numbers
	Count   uint64   // of a histogram: its hits
	Sum     *Number  // of a histogram: of the numbers; nil: it is not known
}

// Bucket counts the numbers that are at most Bound, those of the buckets before it too.
type Bucket struct {
	Bound Number
	Count uint64
}

// Family is all series of one name. Counters have names that end with _total, and what has a unit has it in its name: Prometheus asks for that.
type Family struct {
	Name, Help string
	Unit       string // "seconds" where the name has it; "": none
	Kind       Kind
	Samples    []Sample
}

// Set has families by their names, in the order in which they came.
type Set struct {
	order  []*Family
	byName map[string]*Family
	joined map[*Family]map[string]int // where the series of Join are, by their labels
}

// NewSet makes an empty set.
func NewSet() *Set { return &Set{byName: map[string]*Family{}} }

// Families gives the families.
func (s *Set) Families() []*Family { return s.order }

// Add adds series to the family of a name. It is refused if there is one of the name that is of another kind, or one whose series would have the
// same names.
func (s *Set) Add(f Family) error {
	at := s.byName[f.Name]
	if at == nil {
		for _, other := range s.order {
			if series := other.collides(&f); series != "" {
				return fmt.Errorf("metrics %s and %s would both have a series %s: give the event, or what it records, another name", other.Name, f.Name, series)
			}
		}
		at = &Family{Name: f.Name, Help: f.Help, Unit: f.Unit, Kind: f.Kind}
		s.byName[f.Name] = at
		s.order = append(s.order, at)
	}
	if at.Kind != f.Kind || at.Unit != f.Unit {
		return fmt.Errorf("metric %s would be a %s and a %s: give the event, or what it records, another name", f.Name, at.Kind, f.Kind)
	}
	at.Samples = append(at.Samples, f.Samples...)
	return nil
}

// series are the names that the series of a family have.
func (f *Family) series() []string {
	if f.Kind == Histogram {
		return []string{f.Name, f.Name + "_bucket", f.Name + "_sum", f.Name + "_count"}
	}
	return []string{f.Name, strings.TrimSuffix(f.Name, "_total")}
}

// collides gives a name that series of both families would have; "": there is none.
func (f *Family) collides(o *Family) string {
	for _, a := range f.series() {
		for _, b := range o.series() {
			if a == b {
				return a
			}
		}
	}
	return ""
}

// Name makes a name of a metric or a label of words: what Prometheus does not take becomes an underscore, and several become one.
func Name(words ...string) string {
	var b strings.Builder
	for _, r := range strings.Join(words, "_") {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9' && b.Len() > 0:
			b.WriteRune(r)
		case !strings.HasSuffix(b.String(), "_"):
			b.WriteByte('_')
		}
	}
	return strings.TrimRight(b.String(), "_")
}
