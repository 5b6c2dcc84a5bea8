package spans

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/internal/spanset"
)

// Options say which calls become spans, and where these go. At least one of Endpoint, JSON and Export is needed; Endpoint and JSON exclude
// each other.
type Options struct {
	// Endpoint is the address of a collector: http://HOST[:4318][/PATH], https://…, grpc://HOST[:4317] or grpcs://…. 65,536 spans wait for it at
	// most; what comes when these wait is dropped, and counted. A batch that the collector can not take is sent again for a minute.
	Endpoint string
	// Headers are sent with each request to Endpoint.
	Headers map[string]string
	// JSON gets a line of OTLP's JSON for each batch. It gets every span: reading waits for it, and records that come meanwhile wait in the
	// target's ring. It is not closed.
	JSON io.Writer
	// Export gets the spans that have been made since it was called last, at least one, from one goroutine. The slice is its own.
	Export func([]*Span)

	// Service is the attribute service.name; "": the name of the program's file.
	Service string
	// PID is the attribute process.pid; 0: the own process's, of another target none.
	PID int

	// Sets are sets of functions that are worth a span: net/http, grpc, database/sql, redis, net, runtime, libc, openssl, or the name of a file
	// of one, which ends in .txt or begins with / or a dot. What of a set the program has not is left out.
	Sets []string
	// Sample keeps one trace in so many, each as a whole; 0 and 1 keep all.
	Sample uint64
	// Slower has only calls become spans that take at least this long, and Errors only calls that have failed. Both are tested at the return, where a
	// call that does not pass makes no record; the parent of a span is the nearest call that passes too.
	Slower time.Duration
	Errors bool
	// Wait is how long a call waits, with Slower and Errors, for the one that it is in; 0: 10 s.
	Wait time.Duration
	// Budget is the most that each event may take; a call has two. The zero Budget sets no bounds.
	Budget kprobes.Budget

	// Log takes a line about what is not as it was asked for: what spans will not have, spans that were lost. Several goroutines call it. Nil: nobody is told.
	Log func(line string)
	// LeftOut takes a line about each function of a set or a pattern that is left out, and each attribute, with the reason. Start calls it.
	LeftOut func(line string)
	// Hit takes hits of the Core's other events, as the function that Core.Poll is given does. Nil: they are counted (Stats.Others).
	Hit func(*kprobes.Hit)
}

// filtered says whether most calls are stopped at their return.
func (o *Options) filtered() bool { return o.Slower > 0 || o.Errors }

// check says what is wrong with the options.
func (o *Options) check() error {
	switch {
	case o.Endpoint == "" && o.JSON == nil && o.Export == nil:
		return errors.New("spans have nowhere to go: give Options.Endpoint, as in http://localhost:4318, or JSON, or Export")
	case o.Endpoint != "" && o.JSON != nil:
		return errors.New("Options.Endpoint and JSON exclude each other: send to a collector, or write what its otlpjsonfile receiver reads")
	case o.Endpoint == "" && len(o.Headers) > 0:
		return errors.New("Options.Headers are for Endpoint, which is missing")
	case o.Slower < 0:
		return fmt.Errorf("Options.Slower is %v: a time can not be negative", o.Slower)
	case o.Wait < 0:
		return fmt.Errorf("Options.Wait is %v: a time can not be negative", o.Wait)
	case o.Wait > 0 && !o.filtered():
		return errors.New("Options.Wait is for Slower and Errors: without them nothing waits")
	case o.PID < 0:
		return fmt.Errorf("Options.PID is %d: the number of a process is wanted", o.PID)
	}
	for name, value := range o.Headers {
		if err := otlp.CheckHeader(name, value); err != nil {
			return fmt.Errorf("Options.Headers: %w", err)
		}
	}
	return nil
}

// sender makes what sends the spans; nil: nothing does.
func (o *Options) sender() (otlp.Sender, error) {
	switch {
	case o.JSON != nil:
		return otlp.NewFile(unclosed{o.JSON}), nil
	case o.Endpoint == "":
		return nil, nil
	}
	h := http.Header{}
	for name, value := range o.Headers {
		h.Set(name, value)
	}
	to, err := otlp.Dial(o.Endpoint, h)
	if err != nil {
		return nil, fmt.Errorf("Options.Endpoint: %w", err)
	}
	return to, nil
}

// unclosed is a writer that stays open.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// calls reads what is to become spans.
func (o *Options) calls(probes []string) (out []*spanmaker.Call, err error) {
	var errs []error
	for _, text := range probes {
		c, err := spanset.Probe(text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, spanmaker.OfProbe(c))
	}
	for _, name := range o.Sets {
		calls, err := spanset.Load(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("Options.Sets: %w", err))
		}
		for _, c := range calls {
			out = append(out, spanmaker.OfSet(name, c))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New(`no function is given: give one, such as "main.handle", or Options.Sets`)
	}
	return out, nil
}

// say tells something if somebody wants to know.
func say(to func(string), format string, args ...any) {
	if to != nil {
		to(fmt.Sprintf(format, args...))
	}
}
