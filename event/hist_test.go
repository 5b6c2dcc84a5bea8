package event

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestParseHist has what the kernel prints of triggers, and what it says of wrong ones; a guest's kernel is asked about the same
// ones (TestHistograms in target/guest).
func TestParseHist(t *testing.T) {
	for in, want := range map[string]string{
		"keys=a": "hist:keys=a:vals=hitcount:sort=hitcount:size=2048",
		"hist:key=a.log2,b.hex:val=c:sort=b,c.descending":  "hist:keys=a.log2,b.hex:vals=hitcount,c:sort=b.hex,c.descending:size=2048",
		"keys=a.buckets=0x10:size=1000 if a > 3":           "hist:keys=a.buckets=16:vals=hitcount:sort=hitcount:size=1024 if a > 3",
		"keys=common_pid.execname:vals=n.hex:nohitcount":   "hist:keys=common_pid.execname:vals=n.hex:sort=hitcount:size=2048:nohitcount",
		"keys=a:ts0=common_timestamp:pause":                "hist:keys=a:vals=hitcount:ts0=common_timestamp:sort=hitcount:size=2048:clock=global",
		"name=n:keys=a:x=b*2,y=$x-c:z=-(a+b) if a > 3":     "hist:name=n:keys=a:vals=hitcount:x=b*2,y=$x-c,z=-(a+b):sort=hitcount:size=2048 if a > 3",
		"keys=a:vals=b.percent,hitcount.graph:sort=b":      "hist:keys=a:vals=hitcount,b.percent,hitcount.graph:sort=b.percent:size=2048",
		"keys=a:x=$y:onmax($x).save(aa, bb)":               "hist:keys=a:vals=hitcount:x=$y:sort=hitcount:size=2048:onmax($x).save(aa,bb)",
		"keys=a:onmatch(g.e).trace(lat,$x,aa)":             "hist:keys=a:vals=hitcount:sort=hitcount:size=2048:onmatch(g.e).trace(lat,$x,aa)",
		"keys=a:onmatch(g.e).lat($x):onchange($y).lat($y)": "hist:keys=a:vals=hitcount:sort=hitcount:size=2048:onmatch(g.e).lat($x):onchange($y).lat($y)",
		"keys=f.sym-offset,a-f.sym-offset:clock=global":    "hist:keys=f.sym-offset,a-f.sym-offset:vals=hitcount:sort=hitcount:size=2048",
		"keys=stacktrace:values=hitcount,n:sort=n":         "hist:keys=common_stacktrace:vals=hitcount,n:sort=n:size=2048",
		"keys=f.sym,g.sym-offset:sort=hitcount.ascending":  "hist:keys=f.sym,g.sym-offset:vals=hitcount:sort=hitcount:size=2048",
	} {
		h, err := ParseHist(in)
		if err != nil || h.String() != want {
			t.Errorf("%s: %v, %v, want %s", in, h, err, want)
			continue
		}
	}
	for in, want := range map[string]HistCode{
		"":                                    HistErrno,
		"vals=a":                              HistErrno,
		"keys=":                               HistEmptyAssignment,
		"keys=a:sort=b":                       HistInvalidSortField,
		"keys=a:sort=a.up":                    HistInvalidSortModifier,
		"keys=a:sort=,a":                      HistEmptySortField,
		"keys=a,b,c:sort=a,b,c":               HistTooManySortFields,
		"keys=a.none":                         HistBadFieldModifier,
		"keys=a.buckets":                      HistBadFieldModifier,
		"keys=a.execname":                     HistBadFieldModifier,
		"keys=a:vals=b.log2":                  HistBadFieldModifier,
		"keys=a,b,c,d":                        HistErrno,
		"keys=a,":                             HistFieldNotFound,
		"keys=a:nohitcount":                   HistNeedVal,
		"keys=a:size=1":                       HistErrno,
		"keys=a:size=999999999":               HistErrno,
		"keys=a:cont":                         HistNoSuchTrigger,
		"keys=a:clear":                        HistNoSuchTrigger,
		"keys=a:clock=mono":                   HistSetClockFail,
		"keys=a:none":                         HistErrno,
		"keys=a:x=":                           HistEmptyAssignment,
		"keys=a:x=1,y":                        HistMalformedAssignment,
		"keys=a:x=b.log2":                     HistBadFieldModifier,
		"keys=a:x=b.percent":                  HistBadFieldModifier,
		"keys=a:x=5x":                         HistExpectNumber,
		"keys=a:x=b+":                         HistErrno,
		"keys=a:x=-b":                         HistErrno,
		"keys=a:x=-(b)-":                      HistErrno,
		"keys=a:x=-(b)+c":                     HistUnaryMinusSubexpr,
		"keys=a:x=-(b)c":                      HistUnaryMinusSubexpr,
		"keys=a:x=b+c+d+e+f":                  HistTooManySubexpr,
		"keys=a:onmax($x)":                    HistActionNotFound,
		"keys=a:onmax($x":                     HistErrno,
		"keys=a:onmax($x).none":               HistActionNotFound,
		"keys=a:onmax($x).save(a)":            HistInvalidParam,
		"keys=a:onmax($x).snapshot()":         HistUnsupported,
		"keys=a:onmax($x).snapshot(":          HistNoClosingParen,
		"keys=a:onmatch(g.e).snapshot()":      HistActionMismatch,
		"keys=a:onmatch(g.e).save(aa)":        HistActionMismatch,
		"keys=a:onmatch(g.e":                  HistNoClosingParen,
		"keys=a:onmatch(e).lat($x)":           HistSubsysNotFound,
		"keys=a" + strings.Repeat(":x=1", 17): HistTooManyVars,
		"keys=a" + strings.Repeat(":onmax($x).save(aa)", 9):          HistErrno,
		"keys=a:onmax($x).save(aa" + strings.Repeat(",aa", 65) + ")": HistTooManyParams,
	} {
		_, err := ParseHist(in)
		var e *HistError
		if !errors.As(err, &e) || e.Code != want || !errors.Is(err, want.Errno()) || e.Pos > len(e.Hist) {
			t.Errorf("%q: %v, want %s", in, err, want.Text())
		}
	}
}

// FuzzHist parses what may be anything: what is taken prints as something that is taken.
func FuzzHist(f *testing.F) {
	for _, s := range []string{
		"keys=a", "hist:keys=a.log2,b:vals=c.hex:sort=a.descending:size=300 if a > 3", "keys=a.buckets=7", "keys=a:x=-(a+b),y=$x*2-3/c:onmax($x).save(aa,bb)",
		"name=n:keys=a:ts0=common_timestamp.usecs:onmatch(g.e).trace(lat,$ts0,aa):vals=a.percent,hitcount.graph:nohitcount:pause",
	} {
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
		// What it is sorted by is printed with the key's modifier, as the kernel does, which takes none there; that it is paused is not.
		unsorted := func(h *Hist) string {
			spec, rest, _ := strings.Cut(strings.TrimSuffix(h.String(), " if "+h.Filter), ":sort=")
			return spec + rest[strings.Index(rest, ":size="):]
		}
		again, err := ParseHist(unsorted(h))
		if err != nil || unsorted(again) != unsorted(h) {
			t.Fatalf("%q: %s, then %v, %v", s, h, again, err)
		}
	})
}

// TestParseSynthetic has definitions of synthetic events, and what is wrong with others; a guest's kernel is asked about the same ones
// (TestSyntheticEvents in target/guest).
func TestParseSynthetic(t *testing.T) {
	s, err := ParseSynthetic("s:synthetic/lat u64 ns; pid_t pid;char comm[16]; unsigned  int x; char any[]")
	want := []SyntheticField{
		{Name: "ns", Type: "u64", Size: 8},
		{Name: "pid", Type: "pid_t", Size: 4, Signed: true},
		{Name: "comm", Type: "char[16]", Size: 16, Signed: true, Text: true},
		{Name: "x", Type: "unsigned int", Size: 4},
		{Name: "any", Type: "__data_loc char[]", Size: MaxHistText, Signed: true, Text: true},
	}
	if err != nil || s.Name != "lat" || !slices.Equal(s.Fields, want) || !s.Fields[4].Dynamic() {
		t.Errorf("%+v, %v", s, err)
	}
	for in, want := range map[string]string{
		"s:":                                   synthBadCmd,
		"s:lat":                                synthBadCmd,
		"s:lat u64":                            synthBadCmd,
		"s:la-t u64 ns":                        synthBadName,
		"s:other/lat u64 ns":                   synthBadDynCmd,
		"s:lat u64 ns; none x":                 synthBadType,
		"s:lat u64 ns; u64":                    synthBadField,
		"s:lat u64 ns; unsigned int":           synthIncomplete,
		"s:lat u64 1ns":                        synthBadName,
		"s:lat char c[300]":                    synthBadArray,
		"s:lat char c[x]":                      synthBadArray,
		"s:lat" + strings.Repeat(" u8 f;", 65): synthTooMany,
	} {
		_, err := ParseSynthetic(in)
		var e *SyntheticError
		if !errors.As(err, &e) || e.Text != want || !errors.Is(err, syscall.EINVAL) || !strings.Contains(e.Detail(), want) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
}
