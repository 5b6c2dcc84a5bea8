package otlp

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
)

// The messages in OTLP's JSON: ids are hexadecimal, 64-bit integers strings, enums numbers.
type (
	jsonRequest struct {
		ResourceSpans []jsonResourceSpans `json:"resourceSpans"`
	}
	jsonResourceSpans struct {
		Resource   jsonResource     `json:"resource"`
		ScopeSpans []jsonScopeSpans `json:"scopeSpans"`
	}
	jsonResource struct {
		Attributes []jsonAttr `json:"attributes,omitempty"`
	}
	jsonScopeSpans struct {
		Scope jsonScope  `json:"scope"`
		Spans []jsonSpan `json:"spans"`
	}
	jsonScope struct {
		Name    string `json:"name,omitempty"`
		Version string `json:"version,omitempty"`
	}
	jsonSpan struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		Parent     string      `json:"parentSpanId,omitempty"`
		Name       string      `json:"name"`
		Kind       Kind        `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []jsonAttr  `json:"attributes,omitempty"`
		Status     *jsonStatus `json:"status,omitempty"`
		Flags      uint32      `json:"flags"`
	}
	jsonStatus struct {
		Message string `json:"message,omitempty"`
		Code    Status `json:"code"`
	}
	jsonAttr struct {
		Key   string    `json:"key"`
		Value jsonValue `json:"value"`
	}
	jsonValue struct {
		String *string    `json:"stringValue,omitempty"`
		Bool   *bool      `json:"boolValue,omitempty"`
		Int    *string    `json:"intValue,omitempty"`
		Double any        `json:"doubleValue,omitempty"` // a number, or the name of one that JSON has not
		Array  *jsonArray `json:"arrayValue,omitempty"`
	}
	jsonArray struct {
		Values []jsonValue `json:"values"`
	}
)

// JSON encodes a batch as a line of OTLP's JSON, as the Collector's file exporter writes it and its otlpjsonfile receiver reads it.
func (b *Batch) JSON() ([]byte, error) {
	all := []jsonResourceSpans{}
	for _, of := range b.byResource() {
		in := jsonScopeSpans{Scope: jsonScope{valid(b.Scope.Name), valid(b.Scope.Version)}, Spans: make([]jsonSpan, len(of.spans))}
		for i, s := range of.spans {
			in.Spans[i] = s.json()
		}
		all = append(all, jsonResourceSpans{Resource: jsonResource{jsonAttrs(of.attrs)}, ScopeSpans: []jsonScopeSpans{in}})
	}
	line, err := json.Marshal(jsonRequest{all})
	return append(line, '\n'), err
}

func (s *Span) json() jsonSpan {
	out := jsonSpan{
		TraceID: hex.EncodeToString(s.Trace[:]), SpanID: hex.EncodeToString(s.ID[:]),
		Name: valid(s.Name), Kind: s.Kind, Attributes: jsonAttrs(s.Attrs), Flags: s.flags(),
		Start: strconv.FormatUint(s.Start, 10), End: strconv.FormatUint(s.End, 10),
	}
	if s.Parent != (SpanID{}) {
		out.Parent = hex.EncodeToString(s.Parent[:])
	}
	if s.Status != StatusUnset {
		out.Status = &jsonStatus{valid(s.Message), s.Status}
	}
	return out
}

func jsonAttrs(as []Attr) (out []jsonAttr) {
	for _, a := range as {
		out = append(out, jsonAttr{valid(a.Key), jsonValueOf(a.Value)})
	}
	return out
}

func jsonValueOf(v any) (out jsonValue) {
	switch v := plain(v).(type) {
	case string:
		out.String = &v
	case bool:
		out.Bool = &v
	case int64:
		n := strconv.FormatInt(v, 10)
		out.Int = &n
	case float64:
		out.Double = jsonDouble(v)
	case []any:
		out.Array = &jsonArray{Values: []jsonValue{}}
		for _, e := range v {
			out.Array.Values = append(out.Array.Values, jsonValueOf(e))
		}
	}
	return out
}

// jsonDouble is a number as the JSON of protocol buffers has it.
func jsonDouble(v float64) any {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return v
}
