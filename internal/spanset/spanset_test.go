package spanset

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/otlp"
)

// TestBuiltin reads the sets that come with the command: they are right, say their version, and have each function once.
func TestBuiltin(t *testing.T) {
	if len(Names()) < 8 {
		t.Errorf("sets %q", Names())
	}
	for _, name := range Names() {
		text, err := Text(name)
		if err != nil {
			t.Fatal(err)
		}
		calls, err := Read(name, text)
		if err != nil {
			t.Error(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		if !strings.HasPrefix(first, "# "+name+", version ") {
			t.Errorf("%s begins with %q", name, first)
		}
		seen := map[string]bool{}
		for _, c := range calls {
			if seen[c.Def.Place.Symbol] {
				t.Errorf("%s: %s stands twice", c.Where, c.Def.Place.Symbol)
			}
			seen[c.Def.Place.Symbol] = true
		}
	}
	if _, err := Text("nte"); err == nil || !strings.Contains(err.Error(), `no set is called "nte"; there are database/sql, grpc, `) {
		t.Error(err)
	}
}

func TestRead(t *testing.T) {
	calls, err := Read("my.txt", []byte(`# a comment

format 1
main.load # nothing else
r:query 'main.(*DB).Query' db.query.text=sql db.query.text=$arg2:gostring db.query.text=+8($arg1):gostring rows=$retval:s64 --kind client --if 'rows > 0 && db_query_text ~ "select*"' --error=rows<0 # why
  net:send ok=\"a.b=c" --error "ok == 0"
`))
	if err != nil || len(calls) != 3 {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
	if c := calls[0]; c.Def.Text != "r main.load" || c.Where != "my.txt:4" || c.Kind != 0 || c.Names != nil || len(c.Or) != 0 || c.Error != "" || c.Def.Filter != "" {
		t.Errorf("%+v", c)
	}
	c := calls[1]
	if c.Def.Name != "query" || c.Def.Text != "r:query 'main.(*DB).Query' db_query_text=sql rows=$retval:s64" || c.Kind != otlp.KindClient || c.Where != "my.txt:5" ||
		c.Def.Filter != `rows > 0 && db_query_text ~ "select*"` || c.Error != "rows<0" || !maps.Equal(c.Names, map[string]string{"db_query_text": "db.query.text"}) {
		t.Errorf("%+v, %+v", c, c.Def)
	}
	if or := c.Or["db_query_text"]; len(or) != 2 || or[0].Text != "$arg2:gostring" || or[1].Text != "+8($arg1):gostring" {
		t.Errorf("%+v", or)
	}
	if c := calls[2]; c.Def.Text != `r net:send ok=\"a.b=c"` || c.Error != "ok == 0" || c.Names != nil {
		t.Errorf("%+v, %+v", c, c.Def)
	}
}

func TestReadWrong(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", `my.txt has no function: write "format 1", and below it a line for each function`},
		{"# only\nformat 1\n", "my.txt has no function"},
		{"# c\nmain.f\n", `my.txt:2: "main.f": the first line of a set is "format 1"`},
		{"format 2\nmain.f\n", `my.txt:1: "format 2" is not known: this version of kprobe reads "format 1"`},
		{"format 1\np:x main.f\n", `my.txt:2: "p:x main.f": a span is a call of a function: give the function, or a return probe, r:NAME FUNC`},
		{"format 1\nmain.f%return x=$nothing\n", `my.txt:2: "r main.f%return x=$nothing": column `},
		{"format 1\nmain.f x=$arg1 x=$nothing\n", `my.txt:2: "r main.f x=$nothing": column 12`},
		{"format 1\nmain.*\n", `my.txt:2: "main.*" is a pattern: a set names each function`},
		{"format 1\nmain.f a.b=x a_b=y\n", `my.txt:2: "a.b" and "a_b": one name stands for both where a filter has _ for the dots`},
		{"format 1\nmain.f a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r=x\n", "the most is 32 characters"},
		{"format 1\nmain.f --kind loud\n", `my.txt:2: kind "loud": internal, server, client, producer, consumer`},
		{"format 1\nmain.f --error ret < 0\n", `my.txt:2: "< 0": --NAME VALUE is wanted, with quotes`},
		{"format 1\nmain.f --error 'ret < 0\n", "--NAME VALUE is wanted"},
		{"format 1\nmain.f --error\n", "--NAME VALUE is wanted"},
		{"format 1\nmain.f --if --kind server\n", `--if "--kind": a condition is wanted`},
		{"format 1\nmain.f --error ''\n", `--error "": a condition is wanted`},
		{"format 1\nmain.f --kind client --kind server\n", "--kind stands twice"},
		{"format 1\nmain.f --slower 3ms\n", "my.txt:2: option --slower is not known: --kind, --if, --error"},
		{"format 1\n" + strings.Repeat("#\n", MaxSize), "my.txt has more than 1048576 bytes"},
	} {
		calls, err := Read("my.txt", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %d calls, error %v, want %q", c.text, len(calls), err, c.want)
		}
	}
	if calls, err := Read("my.txt", []byte("format 1\np:x main.f\nmain.g\nw:y main.h\n")); err == nil || len(calls) != 1 || strings.Count(err.Error(), "my.txt:") != 2 {
		t.Errorf("%d calls, %v", len(calls), err)
	}
}

// TestAttributes: columns stay what they were, and quotes, places and constants are left alone.
func TestAttributes(t *testing.T) {
	for _, c := range []struct {
		text, want string
		names      map[string]string
	}{
		{"r main.f", "r main.f", nil},
		{"r:a.b=c main.f a=x.y=z", "r:a.b=c main.f a=x.y=z", nil},
		{"main.f url.path=req.URL.Path b.=c .d=e", "main.f url_path=req.URL.Path b.=c .d=e", map[string]string{"url_path": "url.path"}},
		{`r 'a b.c=d' n.o=\"p.q=r" # s.t=u`, `r 'a b.c=d' n_o=\"p.q=r" # s.t=u`, map[string]string{"n_o": "n.o"}},
		{"r  f\tä.b=1 a.b=2 a.1=3", "r  f\tä.b=1 a_b=2 a.1=3", map[string]string{"a_b": "a.b"}},
		{"r operator= a.b=it's c.d=2", "r operator= a_b=it's c_d=2", map[string]string{"a_b": "a.b", "c_d": "c.d"}},
	} {
		def, names := Attributes(c.text)
		if def != c.want || !maps.Equal(names, c.names) {
			t.Errorf("%q: %q, %v", c.text, def, names)
		}
	}
}

func TestConventional(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		want  []otlp.Attr
	}{
		{"server.address", "127.0.0.1:80", []otlp.Attr{{Key: "server.address", Value: "127.0.0.1"}, {Key: "server.port", Value: int64(80)}}},
		{"network.peer.address", "[::1]:65535", []otlp.Attr{{Key: "network.peer.address", Value: "::1"}, {Key: "network.peer.port", Value: int64(65535)}}},
		{"server.address", "host", []otlp.Attr{{Key: "server.address", Value: "host"}}},
		{"server.address", "dns:///host:80", []otlp.Attr{{Key: "server.address", Value: "dns:///host:80"}}},
		{"server.address", "host:http", []otlp.Attr{{Key: "server.address", Value: "host:http"}}},
		{"server.address", "/tmp/socket", []otlp.Attr{{Key: "server.address", Value: "/tmp/socket"}}},
		{"server.address", "", nil},
		{"rpc.method", "/a.B/C", []otlp.Attr{{Key: "rpc.method", Value: "a.B/C"}}},
		{"rpc.response.status_code", int64(5), []otlp.Attr{{Key: "rpc.response.status_code", Value: "5"}}},
		{"http.response.status_code", int64(404), []otlp.Attr{{Key: "http.response.status_code", Value: int64(404)}}},
		{"http.response.status_code", int64(0), nil},
		{"url.path", "/a", []otlp.Attr{{Key: "url.path", Value: "/a"}}},
	} {
		if got := Conventional(nil, c.key, c.value); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s=%v: %v", c.key, c.value, got)
		}
	}
}

func TestIsFile(t *testing.T) {
	for name, want := range map[string]bool{"net/http": false, "net": false, "my.txt": true, "./my": true, "../my": true, "/etc/my": true, "dir/my.txt": true, "dir/my": false} {
		if IsFile(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
