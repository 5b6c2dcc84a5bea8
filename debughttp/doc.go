// Package debughttp serves the files of Kprobes over HTTP, for curl and for people: those of
// tracefs (kprobe_events, events/…, trace, trace_pipe, kprobe_profile, error_log) and those
// of debugfs (list, enabled, blacklist).
//
// A program that imports it and serves http.DefaultServeMux is ready:
//
//	import _ "kprobes.dev/kprobes/debughttp"
//	go http.ListenAndServe("localhost:6060", nil)
//
//	export KPROBES_HTTP_TOKEN=$(openssl rand -hex 16) # in the program's environment too
//	files() { curl -sS -H "Authorization: Bearer $KPROBES_HTTP_TOKEN" "$@"; }
//	files --data-binary 'p:look main.lookup' localhost:6060/debug/kprobes/kprobe_events
//	files --data-binary 1 localhost:6060/debug/kprobes/events/kprobes/look/enable
//	files -N localhost:6060/debug/kprobes/trace_pipe
//
// The import touches nothing, unless KPROBE_EVENT is set (package autoprobe): the process is
// opened by the first request that needs it. Who serves another mux takes Handler; New serves
// the events of any target.
//
// # Who may ask
//
// Whoever can define a probe can read the program's memory. So every request, also one that
// only reads, must bear a token (TokenVar, TokenFileVar; without one all are answered with
// 403), be addressed to a loopback name or one that is listed, come from no page of another
// origin, and not have passed a proxy. State is changed by POST, PUT and DELETE only.
//
// profile and metrics, beside the files, answer go tool pprof and Prometheus. pprof sends the
// token as a password: for profile alone that is taken.
//
// GET reads a file; POST writes as >> does; PUT writes as > does, which truncates the file
// first. PUT of no text to instances/NAME makes an instance, DELETE removes it. What was wrong
// is told as text, with the status 400; 404 (ENOENT), 409 (EBUSY, EEXIST).
package debughttp
