package debughttp

import (
	"bytes"
	"html/template"
)

// page lists the files. html/template escapes what it shows.
var page = template.Must(template.New("index").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>kprobes</title></head>
<body>
<h1>kprobes</h1>
<p>Every request needs the header <code>Authorization: Bearer TOKEN</code>. GET reads a file, POST
appends to it (as &gt;&gt; does), PUT truncates it first (as &gt; does):</p>
<pre>curl -H "Authorization: Bearer $KPROBES_HTTP_TOKEN" --data-binary 'p:look main.lookup' http://{{.Host}}{{.Prefix}}kprobe_events</pre>
<table>
{{range .Files}}<tr><td><a href="{{$.Prefix}}{{.Path}}">{{.Path}}</a></td><td>{{.Use}}</td><td>{{.What}}</td></tr>
{{end}}</table>
<h2>events</h2>
<ul>
{{range .Events}}<li>{{.}}:
<a href="{{$.Prefix}}events/{{.}}/enable">enable</a>
<a href="{{$.Prefix}}events/{{.}}/format">format</a>
<a href="{{$.Prefix}}events/{{.}}/id">id</a></li>
{{else}}<li>none is defined</li>
{{end}}</ul>
</body>
</html>
`))

// described is a file as the index tells of it.
type described struct{ Path, Use, What string }

// contents is the index, in the order in which files are needed.
var contents = []described{
	{"kprobe_events", "read, append, replace", "definitions of events"},
	{"events/enable", "read, write 0 or 1", "all events at once; events/GROUP/enable and events/GROUP/EVENT/enable for some"},
	{"trace", "read; PUT empties it", "the records in the buffer"},
	{"trace_pipe", "stream", "records as they come; reading takes them out of the buffer"},
	{"tracing_on", "read, write 0 or 1", "whether records go to the buffer"},
	{"kprobe_profile", "read", "hits and misses of each probe"},
	{"metrics", "read", "the counts of all events, and the histograms of their triggers, for Prometheus"},
	{"profile?event=EVENT", "read; seconds=N, vals=ARG,ARG", "a profile for go tool pprof: who calls the event's function, how often, how long"},
	{"instances", "list; PUT instances/NAME makes one, DELETE removes it", "buffers with events of their own, and the files of each"},
	{"error_log", "read; PUT empties it", "the last bad definitions"},
	{"list", "read", "all probes, with their state"},
	{"enabled", "read, write 0 or 1", "the switch for all probes"},
	{"optimization", "read, write 0 or 1", "whether probes may be jumps"},
	{"blacklist", "read", "functions that can not be probed"},
}

func index(c *call) error {
	var events []string
	for _, group := range c.in.Groups() {
		names, err := c.in.Names(group)
		if err != nil {
			continue // deleted just now
		}
		for _, name := range names {
			events = append(events, group+"/"+name)
		}
	}
	var b bytes.Buffer
	err := page.Execute(&b, struct {
		Host, Prefix string
		Files        []described
		Events       []string
	}{c.r.Host, Prefix, contents, events})
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	return c.text(b.String())
}
