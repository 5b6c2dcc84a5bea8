package event

import (
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"
)

// TestParseTrigger has what the kernel's trigger files show of triggers; a guest's kernel is asked about most of them
// (TestTriggerLanguage in target/guest).
func TestParseTrigger(t *testing.T) {
	for in, want := range map[string]string{
		"traceon":                          "traceon:unlimited",
		" traceoff:3 ":                     "traceoff:count=3",
		"traceoff 3":                       "traceoff:count=3",
		"traceoff: 0x10":                   "traceoff:count=16",
		"traceoff:":                        "traceoff:unlimited",
		"traceon:0":                        "traceon:count=0",
		"traceon:18446744073709551615":     "traceon:unlimited",
		"stacktrace:010 if n > 5":          "stacktrace:count=8 if n > 5",
		"stacktrace if n > 5 && m < 3":     "stacktrace:unlimited if n > 5 && m < 3",
		"stacktrace:if\tn > 5":             "stacktrace:unlimited if n > 5",
		"stacktrace:5  \tif   n > 5":       "stacktrace:count=5 if n > 5",
		"enable_event:kprobes:b":           "enable_event:kprobes:b:unlimited",
		"enable_event kprobes:b if n == 1": "enable_event:kprobes:b:unlimited if n == 1",
		"disable_event:g:b:+2 if n == 1":   "disable_event:g:b:count=2 if n == 1",
		"enable_hist:g:b:7":                "enable_hist:g:b:count=7",
		"disable_hist:g:b":                 "disable_hist:g:b:unlimited",
		"hist:keys=a if n > 5":             "hist:keys=a:vals=hitcount:sort=hitcount:size=2048 if n > 5",
		"hist keys=a":                      "hist:keys=a:vals=hitcount:sort=hitcount:size=2048",
	} {
		got, err := ParseTrigger(in)
		if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v, want %s", in, got, err, want)
		}
	}
}

// TestTriggerErrors has which error number the kernel gives for triggers that are wrong, and where they are.
func TestTriggerErrors(t *testing.T) {
	for _, c := range []struct {
		in     string
		errno  syscall.Errno
		column int
	}{
		{"", syscall.EINVAL, 1},
		{":", syscall.EINVAL, 1},
		{"traceof", syscall.EINVAL, 1},
		{"TRACEOFF", syscall.EINVAL, 1},
		{"!traceoff", syscall.EINVAL, 1},
		{"snapshot", syscall.EINVAL, 1},
		{"snapshot:1 if n > 5", syscall.EINVAL, 1},
		{"traceoff:x", syscall.EINVAL, 10},
		{"traceoff:-1", syscall.EINVAL, 10},
		{"traceoff:5x", syscall.EINVAL, 10},
		{"traceoff:5:6", syscall.EINVAL, 10},
		{"traceoff:18446744073709551616", syscall.ERANGE, 10},
		{"traceoff n > 5", syscall.EINVAL, 10},
		{"traceoff:5 n > 5", syscall.EINVAL, 12},
		{"traceoff if", syscall.EINVAL, 12},
		{"traceoff iff n > 5", syscall.EINVAL, 10},
		{"enable_event", syscall.EINVAL, 13},
		{"enable_event:", syscall.EINVAL, 14},
		{"enable_event:kprobes", syscall.EINVAL, 14},
		{"enable_event:kprobes:", syscall.EINVAL, 14},
		{"enable_event::b", syscall.EINVAL, 14},
		{"enable_event:kprobes:b:", syscall.EINVAL, 24},
		{"enable_event:kprobes:b:x", syscall.EINVAL, 24},
		{"enable_event:kprobes:b 5", syscall.EINVAL, 24},
		{"enable_event:kprobes:b:99999999999999999999 if n > 5", syscall.ERANGE, 24},
		{"disable_hist:kprobes:b:1 if", syscall.EINVAL, 28},
		{"traceoff if " + strings.Repeat("n", 4084), syscall.EINVAL, 1},
	} {
		_, err := ParseTrigger(c.in)
		var e *TriggerError
		if !errors.As(err, &e) || !errors.Is(err, c.errno) || e.Pos+1 != c.column || e.Why == "" {
			t.Errorf("%q: %v, want column %d and %v", c.in, err, c.column, c.errno)
		}
	}
	for _, in := range []string{"hist", "hist:keys=", "hist:keys=a.none"} {
		_, err := ParseTrigger(in)
		var e *HistError
		if !errors.As(err, &e) {
			t.Errorf("%q: %v", in, err)
		}
	}
	e := (&Trigger{Text: "enable_event:g:b"}).Refuse(syscall.EEXIST, "g:b", "why")
	if e.Error() != `trigger "enable_event:g:b", column 14: why` || !errors.Is(e, syscall.EEXIST) {
		t.Errorf("%v", e)
	}
}

// TestParseTriggerCommand has what a trigger file takes beyond triggers; internal/hit compares with what a kernel has said to more.
func TestParseTriggerCommand(t *testing.T) {
	for in, want := range map[string]string{
		"!traceoff:x y":                           "traceoff:unlimited",
		"!enable_event:g:e:x if":                  "enable_event:g:e:unlimited",
		"traceoff:3:x if n > 5":                   "traceoff:count=3 if n > 5",
		"enable_event:g:e:3:x":                    "enable_event:g:e:count=3",
		"snapshot:1 if n > 5":                     "snapshot:count=1 if n > 5",
		"traceoff:9223372036854775808":            "traceoff:count=-9223372036854775808",
		"!hist:keys=a:pause":                      "hist:keys=a:vals=hitcount:sort=hitcount:size=2048",
		"hist:keys=a:clear":                       "hist:keys=a:vals=hitcount:sort=hitcount:size=2048",
		"hist:keys=iff\tif\tn > 5":                "hist:keys=iff:vals=hitcount:sort=hitcount:size=2048 if n > 5",
		"hist:keys=a:x=b:onchange($x).snapshot()": "hist:keys=a:vals=hitcount:x=b:sort=hitcount:size=2048:onchange($x).snapshot()",
	} {
		got, err := ParseTriggerCommand(in)
		if err != nil || got.String() != want || got.Remove != strings.HasPrefix(in, "!") {
			t.Errorf("%q: %v, %v, want %s", in, got, err, want)
			continue
		}
		if got.Hist != nil && (got.Hist.Remove != got.Remove || got.Hist.Clear != strings.HasSuffix(in, "clear")) {
			t.Errorf("%q: %+v", in, got.Hist)
		}
		if _, err := ParseTrigger(in); err == nil && !strings.Contains(in, "iff") && got.Count <= 1<<62 {
			t.Errorf("%q is a trigger", in)
		}
	}
	for _, in := range []string{"", "!", "!nosuch", "!enable_event", "!enable_event:g", "snapshot:x", "!hist", "!hist:name=n", "hist:keys=a if", "hist:keys=a:nosuch"} {
		if got, err := ParseTriggerCommand(in); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

// TestParseSyntheticCommand has lines of synthetic_events.
func TestParseSyntheticCommand(t *testing.T) {
	exists := func(name string) bool { return name == "there" }
	for in, want := range map[string]string{
		" lat\tu64  t;char n[16]; char any[]": "lat\tu64 t; char[16] n; char[] any",
		"lat u64 a s32 b":                     "lat\tu64 a; s32 b",
		"lat u64 a; u64 a;":                   "lat\tu64 a; u64 a",
	} {
		got, _, err := ParseSyntheticCommand(in, exists)
		if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v, want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{"!lat": "lat", "!lat u64 x": "lat", "!": "", " ": ""} {
		if got, name, err := ParseSyntheticCommand(in, exists); got != nil || name != want || err != nil {
			t.Errorf("%q deletes %q: %v, %v", in, name, got, err)
		}
	}
	for in, want := range map[string]syscall.Errno{"lat": syscall.EINVAL, "there u64 x": syscall.EEXIST, "there none x": syscall.EEXIST, "there u64": syscall.EINVAL} {
		_, _, err := ParseSyntheticCommand(in, exists)
		var e *SyntheticError
		if !errors.Is(err, want) || !errors.As(err, &e) || e.LogEntry() != e.Detail() {
			t.Errorf("%q: %v, want %v", in, err, want)
		}
	}
}

// FuzzTrigger parses what may be anything: what is taken prints as something that means the same.
func FuzzTrigger(f *testing.F) {
	for _, s := range []string{
		"traceon", "traceoff:5 if n > 5", "stacktrace: 0x3\tif\tn", "enable_event:g:e:7 if a", "disable_hist g:e", "hist:keys=a.log2 if a > 3", "traceoff:5:6", "!x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTrigger(s)
		if err != nil {
			var e *TriggerError
			var h *HistError
			if !errors.As(err, &h) && (!errors.As(err, &e) || e.Pos < 0 || e.Pos > len(e.Trigger)) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if got.Command == TriggerHist {
			return
		}
		if got.Count > math.MaxInt64 && got.Count != Unlimited {
			return // the kernel prints it as a negative number, and takes none
		}
		text := strings.Replace(strings.Replace(got.String(), ":count=", ":", 1), ":unlimited", "", 1)
		again, err := ParseTrigger(text)
		if err != nil || again.String() != got.String() {
			t.Fatalf("%q: %s, then %v, %v", s, got, again, err)
		}
	})
}
