package spanset

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/otlp"
)

// dotted is an argument whose name is that of an attribute, with dots.
var dotted = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+=`)

// Attributes makes of a definition with names of attributes one that the language of definitions takes: a _ stands for each dot, so that
// columns stay what they were. names has the attributes by these names; nil: none has a dot.
func Attributes(text string) (def string, names map[string]string) {
	b := []byte(text)
	for i, w := range words(text) {
		name := dotted.FindString(w.text)
		if i == 0 || name == "" {
			continue
		}
		name = strings.TrimSuffix(name, "=")
		plain := strings.ReplaceAll(name, ".", "_")
		copy(b[w.at:], plain)
		if names == nil {
			names = map[string]string{}
		}
		names[plain] = name
	}
	return string(b), names
}

// word is a word of a definition, and where it begins.
type word struct {
	text string
	at   int
}

// words splits a definition at its spaces, but for those in quotes, up to a comment. As in the language of definitions a single quote
// opens a name only where a name may begin, and the string of a constant has no spaces.
func words(s string) (out []word) {
	begin := -1
	var quote byte
	for i := range len(s) {
		c := s[i]
		space := c == ' ' || c >= '\t' && c <= '\r'
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
			continue
		case space && begin >= 0:
			out, begin = append(out, word{s[begin:i], begin}), -1
			continue
		case space:
			continue
		case c == '#':
			if begin >= 0 {
				out = append(out, word{s[begin:i], begin})
			}
			return out
		case begin < 0:
			begin = i
		}
		opens := c == '"' || c == '\'' && (i == begin || strings.IndexByte(":@=", s[i-1]) >= 0)
		if opens && strings.IndexByte(s[i+1:], c) >= 0 {
			quote = c
		}
	}
	if begin >= 0 {
		out = append(out, word{s[begin:], begin})
	}
	return out
}

// kinds are the kinds of spans by their names.
var kinds = map[string]otlp.Kind{
	"internal": otlp.KindInternal, "server": otlp.KindServer, "client": otlp.KindClient, "producer": otlp.KindProducer, "consumer": otlp.KindConsumer,
}

// Kind reads the name of a kind of spans.
func Kind(name string) (otlp.Kind, error) {
	k, ok := kinds[name]
	if !ok {
		all := make([]string, 0, len(kinds))
		for name := range kinds {
			all = append(all, name)
		}
		slices.SortFunc(all, func(a, b string) int { return int(kinds[a] - kinds[b]) })
		return 0, fmt.Errorf("kind %q: %s", name, strings.Join(all, ", "))
	}
	return k, nil
}

// Conventional appends an attribute as OpenTelemetry's semantic conventions have it, where programs have it otherwise:
//
//   - an address HOST:PORT becomes the host alone, and its port an attribute of its own;
//   - rpc.method has no / in front;
//   - rpc.response.status_code and db.response.status_code are strings.
//
// An empty string and the HTTP status 0 are what the program has not said, and left out.
func Conventional(attrs []otlp.Attr, key string, value any) []otlp.Attr {
	text, isText := value.(string)
	switch {
	case isText && text == "", key == "http.response.status_code" && fmt.Sprint(value) == "0":
		return attrs
	case isText && strings.HasSuffix(key, ".address"):
		host, port, err := net.SplitHostPort(text)
		n, bad := strconv.ParseUint(port, 10, 16)
		if err == nil && bad == nil && host != "" {
			return append(attrs, otlp.Attr{Key: key, Value: host}, otlp.Attr{Key: strings.TrimSuffix(key, "address") + "port", Value: int64(n)})
		}
	case isText && key == "rpc.method":
		value = strings.TrimPrefix(text, "/")
	case !isText && (key == "rpc.response.status_code" || key == "db.response.status_code"):
		value = fmt.Sprint(value)
	}
	return append(attrs, otlp.Attr{Key: key, Value: value})
}
