package debughttp

import (
	"net/http"

	_ "kprobes.dev/kprobes/autoprobe" // KPROBE_EVENT
	"kprobes.dev/kprobes/trace"
)

// own serves the process's own events.
var own = newServer(trace.Self, nil)

func init() { http.Handle(Prefix, own) }

// Handler serves the process's own events: what the import has registered under Prefix on
// http.DefaultServeMux. The process is opened by the first request that needs it.
func Handler() http.Handler { return own }
