package metrics

import (
	"strconv"
	"strings"
)

// The media types of the two formats.
const (
	TextType        = "text/plain; version=0.0.4; charset=utf-8"
	OpenMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8"
)

// Accepts says whether a request with this Accept header asks for OpenMetrics.
func Accepts(accept string) (openMetrics bool) {
	for one := range strings.SplitSeq(accept, ",") {
		kind, params, _ := strings.Cut(one, ";")
		if strings.EqualFold(strings.TrimSpace(kind), "application/openmetrics-text") && wanted(params) {
			return true
		}
	}
	return false
}

// wanted says whether the parameters of a media type give it a weight that is not 0.
func wanted(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		if q, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
			f, err := strconv.ParseFloat(q, 64)
			return err == nil && f > 0
		}
	}
	return true
}

// Text appends the families in the text exposition format 0.0.4.
func Text(dst []byte, families []*Family) []byte { return new(writer).families(dst, families) }

// OpenMetrics appends the families as OpenMetrics 1.0.
func OpenMetrics(dst []byte, families []*Family) []byte {
	return append((&writer{open: true}).families(dst, families), "# EOF\n"...)
}

// writer writes one of the formats.
type writer struct{ open bool }

func (w *writer) families(dst []byte, families []*Family) []byte {
	for _, f := range families {
		if len(f.Samples) == 0 {
			continue
		}
		name := f.Name
		if w.open && f.Kind == Counter {
			name = strings.TrimSuffix(name, "_total")
		}
		dst = append(append(append(append(append(dst, "# TYPE "...), name...), ' '), f.Kind.String()...), '\n')
		if w.open && f.Unit != "" {
			dst = append(append(append(append(append(dst, "# UNIT "...), name...), ' '), f.Unit...), '\n')
		}
		dst = append(append(append(dst, "# HELP "...), name...), ' ')
		dst = append(appendEscaped(dst, f.Help, w.open), '\n')
		for i := range f.Samples {
			dst = w.sample(dst, f, &f.Samples[i])
		}
	}
	return dst
}

func (w *writer) sample(dst []byte, f *Family, s *Sample) []byte {
	if f.Kind != Histogram {
		dst = w.series(dst, f.Name, "", s.Labels, "")
		return append(s.Value.append(dst, false), '\n')
	}
	for _, b := range s.Buckets {
		dst = w.series(dst, f.Name, "_bucket", s.Labels, string(b.Bound.append(nil, w.open)))
		dst = append(strconv.AppendUint(dst, b.Count, 10), '\n')
	}
	dst = w.series(dst, f.Name, "_bucket", s.Labels, "+Inf")
	dst = append(strconv.AppendUint(dst, s.Count, 10), '\n')
	if s.Sum != nil {
		dst = w.series(dst, f.Name, "_sum", s.Labels, "")
		dst = append(s.Sum.append(dst, false), '\n')
	}
	dst = w.series(dst, f.Name, "_count", s.Labels, "")
	return append(strconv.AppendUint(dst, s.Count, 10), '\n')
}

// series appends a name and labels, and a blank. le is the bound of a bucket; "": it is none.
func (w *writer) series(dst []byte, name, suffix string, labels []Label, le string) []byte {
	dst = append(append(dst, name...), suffix...)
	between := byte('{')
	label := func(name, value string) {
		dst = append(append(append(append(dst, between), name...), '='), '"')
		dst = append(appendEscaped(dst, value, true), '"')
		between = ','
	}
	for _, l := range labels {
		label(l.Name, l.Value)
	}
	if le != "" {
		label("le", le)
	}
	if between == ',' {
		dst = append(dst, '}')
	}
	return append(dst, ' ')
}

// appendEscaped appends text without what would end it: backslashes and newlines, of what stands in quotes quotes too. What is not UTF-8 becomes U+FFFD.
func appendEscaped(dst []byte, s string, quotes bool) []byte {
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '\\':
			dst = append(dst, `\\`...)
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '"' && quotes:
			dst = append(dst, `\"`...)
		default:
			dst = append(dst, string(r)...)
		}
	}
	return dst
}
