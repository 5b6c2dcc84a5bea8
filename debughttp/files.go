package debughttp

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/httpaccess"
	"kprobes.dev/kprobes/internal/tracefile"
)

// short are files that have a shorter name here than in the tree.
var short = map[string]string{
	"list": "kprobes/list", "blacklist": "kprobes/blacklist", "enabled": "kprobes/enabled", "optimization": "sys/debug/kprobes-optimization",
}

// lookup finds the file of a path, which is relative to Prefix.
func (c *call) lookup(path string) (*tracefile.File, error) {
	path = strings.TrimSuffix(path, "/")
	if long := short[path]; long != "" {
		path = long
	}
	f, err := c.tree.Find(path)
	if err != nil {
		return nil, httpaccess.Refuse(http.StatusNotFound, "no file is called %q: GET %s tells which there are", path, Prefix)
	}
	return f, nil
}

// get answers GET: with the text, the stream or the list of what is in the directory.
func (c *call) get(f *tracefile.File) error {
	if f.Streams() {
		return c.stream(f)
	}
	if !f.Mode.IsDir() {
		text, err := f.Text()
		if err != nil {
			return err
		}
		return c.text(text)
	}
	es, err := f.Entries()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range es {
		fmt.Fprintln(&b, e.Name)
	}
	return c.text(b.String())
}

// put answers POST and, with truncate, PUT.
func (c *call) put(f *tracefile.File, body string, truncate bool) error {
	if truncate {
		if err := f.Truncate(); err != nil {
			return err
		}
	}
	h, err := f.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	for n := 0; ; body = body[n:] { // a file may take a part at a time
		if n, err = h.Write(os.Getpid(), body); err != nil || n == len(body) {
			return err
		}
	}
}

// stream streams a trace_pipe until the client goes.
func (c *call) stream(f *tracefile.File) error {
	h, err := f.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	rc := http.NewResponseController(c.w)
	_ = rc.SetWriteDeadline(time.Time{}) // a server without deadlines needs none lifted
	if err := rc.Flush(); err != nil {
		return fmt.Errorf("the server can not stream: %w", err)
	}
	_ = h.Stream(c.r.Context(), c.w, rc.Flush) // ends when the client goes
	return nil
}
