package spans

import (
	"encoding/hex"
	"strings"

	"kprobes.dev/kprobes/internal/otlp"
)

// Remote is the span of another program that a call is in.
type Remote struct {
	Trace   otlp.TraceID
	Span    otlp.SpanID
	Sampled bool // its trace is kept
}

// ParseTraceparent reads a header of that name (W3C Trace Context, level 2, 3.2): VERSION-TRACE-SPAN-FLAGS. ok is false if it is none.
func ParseTraceparent(text string) (r Remote, ok bool) {
	parts := strings.SplitN(text, "-", 5)
	if len(parts) < 4 || len(parts) > 4 && parts[0] == "00" {
		return Remote{}, false
	}
	var version, flags [1]byte
	for i, to := range [][]byte{version[:], r.Trace[:], r.Span[:], flags[:]} {
		if len(parts[i]) != 2*len(to) || strings.ToLower(parts[i]) != parts[i] {
			return Remote{}, false
		}
		if _, err := hex.Decode(to, []byte(parts[i])); err != nil {
			return Remote{}, false
		}
	}
	r.Sampled = flags[0]&1 != 0
	return r, version[0] != 0xff && r.Trace != otlp.TraceID{} && r.Span != otlp.SpanID{}
}
