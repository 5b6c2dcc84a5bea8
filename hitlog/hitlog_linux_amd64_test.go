package hitlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/hitlog"
)

//go:noinline
func look(key string, n int) int {
	if n > 1000 {
		panic(key)
	}
	return len(key) * n
}

// lookup is look's name in the program.
var lookup = runtime.FuncForPC(reflect.ValueOf(look).Pointer()).Name()

// add adds events to the own process.
func add(texts ...string) (*kprobes.Core, []*kprobes.Event) {
	core, err := kprobes.Self()
	if err != nil {
		log.Fatal(err)
	}
	var defs []*event.Def
	for _, text := range texts {
		d, err := event.Parse(text)
		if err != nil {
			log.Fatal(err)
		}
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	if err != nil {
		log.Fatal(err)
	}
	return core, evs
}

func ExampleLog() {
	core, events := add("p:look " + lookup + " key=$arg1:gostring n=$arg3:s64")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		look("cake", 3)
		look("tea", -1)
		cancel()
	}()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, "at", "tid", "goid", "cpu": // they differ from run to run
				return slog.Attr{}
			}
			return a
		},
	}))
	if err := hitlog.Log(ctx, core, logger, nil); err != nil {
		log.Fatal(err)
	}
	_ = core.Remove(events)
	// Output:
	// level=INFO msg=look args.key=cake args.n=3
	// level=INFO msg=look args.key=tea args.n=-1
}

// ended is a context that is done.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestLog: each hit of several goroutines is a record, with the time, the place and the source of the hit.
func TestLog(t *testing.T) {
	core, evs := add("p:look "+lookup+" key=$arg1:gostring bad=+0(\\0):string", "r:found "+lookup+" n=$retval:s64")
	before := time.Now()
	const threads, calls = 4, 50
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			for range calls {
				look("word", i)
			}
		})
	}
	wg.Wait()
	after := time.Now()
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{AddSource: true, Level: slog.LevelDebug}))
	if err := hitlog.Log(ended(), core, logger, &hitlog.Options{Level: slog.LevelDebug}); err != nil {
		t.Fatal(err)
	}
	looks, sum := 0, 0
	for line := range strings.Lines(out.String()) {
		var r struct {
			Time           time.Time
			Level, Msg, At string
			Caller         string
			Source         struct{ Function, File string }
			Args           map[string]any
			TID, GoID, CPU *int
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		switch r.Msg {
		case "look":
			if looks++; r.Args["key"] != "word" || r.Args["bad"] != nil || len(r.Args) != 2 || r.Caller != "" {
				t.Errorf("%s", line)
			}
		case "found":
			if sum += int(r.Args["n"].(float64)); !strings.Contains(r.Caller, "TestLog") {
				t.Errorf("%s", line)
			}
		}
		// The clocks are read one after the other.
		if r.Time.Before(before.Add(-time.Millisecond)) || r.Time.After(after.Add(time.Millisecond)) || r.Level != "DEBUG" ||
			!strings.HasPrefix(r.At, lookup+"+0x") || r.Source.Function != lookup || r.TID == nil || r.GoID == nil || r.CPU == nil {
			t.Errorf("%s", line)
		}
	}
	if looks != threads*calls || sum != calls*4*(0+1+2+3) {
		t.Errorf("%d calls, the sum of results is %d", looks, sum)
	}
}

// refusing is a handler that takes so many records.
type refusing struct {
	slog.Handler
	left int
}

var errFull = errors.New("full")

func (r *refusing) Handle(ctx context.Context, rec slog.Record) error {
	if r.left--; r.left < 0 {
		return errFull
	}
	return r.Handler.Handle(ctx, rec)
}

// TestLogRefused: an error of the handler ends Log; what is not enabled is not written; Value says what is wrong with a record.
func TestLogRefused(t *testing.T) {
	core, evs := add("p:look " + lookup + " n=$arg3:s64")
	for i := range 5 {
		look("", i)
	}
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	text := slog.NewTextHandler(&out, nil)
	if err := hitlog.Log(ended(), core, slog.New(&refusing{text, 1}), nil); !errors.Is(err, errFull) {
		t.Errorf("%v, want %v", err, errFull)
	}
	for h := range core.Hits(ended()) { // the second was taken
		if v := h.Value("n"); v != int64(2) {
			t.Errorf("the next hit has n=%v", v)
		}
		h.Rec = h.Rec[:8]
		if as := hitlog.Value(core, h).Group(); as[0].Key != "error" || !strings.Contains(fmt.Sprint(as[0].Value), "damaged") {
			t.Errorf("%v", as)
		}
		break
	}
	if err := hitlog.Log(ended(), core, slog.New(text), &hitlog.Options{Level: slog.LevelDebug}); err != nil || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%v; %s", err, out.String())
	}
}
