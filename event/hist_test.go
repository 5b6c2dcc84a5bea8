package event

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestParseHist has what the kernel prints of triggers, and what it says of wrong ones; a guest's kernel is asked about the same
// ones (TestHistograms in target/guest).
func TestParseHist(t *testing.T) {
	for in, want := range map[string]string{
		"keys=a": "hist:keys=a:vals=hitcount:sort=hitcount:size=2048",
		"hist:key=a.log2,b.hex:val=c:sort=b,c.descending": "hist:keys=a.log2,b.hex:vals=hitcount,c:sort=b.hex,c.descending:size=2048",
		"keys=a.buckets=0x10:size=1000 if a > 3":          "hist:keys=a.buckets=16:vals=hitcount:sort=hitcount:size=1024 if a > 3",
		"keys=common_pid.execname:vals=n.hex:nohitcount":  "hist:keys=common_pid.execname:vals=n.hex:sort=hitcount:size=2048",
		"keys=stacktrace:values=hitcount,n:sort=n":        "hist:keys=common_stacktrace:vals=hitcount,n:sort=n:size=2048",
		"keys=f.sym,g.sym-offset:sort=hitcount.ascending": "hist:keys=f.sym,g.sym-offset:vals=hitcount:sort=hitcount:size=2048",
	} {
		h, err := ParseHist(in)
		if err != nil || h.String() != want {
			t.Errorf("%s: %v, %v, want %s", in, h, err, want)
			continue
		}
	}
	for in, want := range map[string]HistCode{
		"":                      HistErrno,
		"vals=a":                HistErrno,
		"keys=":                 HistEmptyAssignment,
		"keys=a:sort=b":         HistInvalidSortField,
		"keys=a:sort=a.up":      HistInvalidSortModifier,
		"keys=a:sort=,a":        HistEmptySortField,
		"keys=a,b,c:sort=a,b,c": HistTooManySortFields,
		"keys=a.none":           HistBadFieldModifier,
		"keys=a.buckets":        HistBadFieldModifier,
		"keys=a.execname":       HistBadFieldModifier,
		"keys=a:vals=b.log2":    HistBadFieldModifier,
		"keys=a,b,c,d":          HistErrno,
		"keys=a,":               HistFieldNotFound,
		"keys=a:nohitcount":     HistNeedVal,
		"keys=a:size=1":         HistErrno,
		"keys=a:size=999999999": HistErrno,
		"keys=a:pause":          HistUnsupported,
		"keys=a:x=b":            HistUnsupported,
		"keys=a:onmax($x)":      HistUnsupported,
	} {
		_, err := ParseHist(in)
		var e *HistError
		if !errors.As(err, &e) || e.Code != want || !errors.Is(err, syscall.EINVAL) || e.Pos > len(e.Hist) {
			t.Errorf("%q: %v, want %s", in, err, want.Text())
		}
	}
}

// FuzzHist parses what may be anything: what is taken prints as something that is taken.
func FuzzHist(f *testing.F) {
	for _, s := range []string{"keys=a", "hist:keys=a.log2,b:vals=c.hex:sort=a.descending:size=300 if a > 3", "keys=a.buckets=7"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHist(s)
		if err != nil {
			var e *HistError
			if !errors.As(err, &e) || !strings.Contains(e.Detail(), e.Code.Text()) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		// What it is sorted by is printed with the key's modifier, as the kernel does, which takes none there.
		spec, _, _ := strings.Cut(strings.ReplaceAll(h.String(), " if "+h.Filter, ""), ":sort=")
		again, err := ParseHist(spec)
		if err != nil || !strings.HasPrefix(again.String(), spec) {
			t.Fatalf("%q: %s, then %v, %v", s, h, again, err)
		}
	})
}
