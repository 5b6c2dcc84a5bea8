package fetch

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
)

// linked compiles histograms of events a, b, c …, with the fields of filterArgs, and of a synthetic event syn with the histogram traced.
func linked(t *testing.T, traced string, texts ...string) []*HistEvent {
	t.Helper()
	syn, err := event.ParseSynthetic("s:syn u64 d; s32 num")
	if err != nil {
		t.Fatal(err)
	}
	if traced != "" {
		if syn.Hist, err = event.ParseHist(traced); err != nil {
			t.Fatal(err)
		}
	}
	var evs []*HistEvent
	for i, text := range texts {
		h, err := event.ParseHist(text)
		if err != nil {
			t.Fatal(err)
		}
		for j := range h.Actions {
			if h.Actions[j].Synth == syn.Name {
				h.Actions[j].Traced = syn
			}
		}
		evs = append(evs, &HistEvent{Group: "g", Name: string(rune('a' + i)), Prog: filterArgs(), Def: h})
	}
	LinkHists(evs)
	return evs
}

// TestLinkHists compiles what generated code can count, and nothing of what refers to something that it can not.
func TestLinkHists(t *testing.T) {
	const from, dur = "keys=u:ts0=common_timestamp", "keys=u:lat=common_timestamp-$ts0"
	for _, c := range []struct {
		traced, hists string // separated by spaces
		ok            bool
	}{
		{"keys=d.log2", from + " " + dur + ":onmatch(g.a).trace(syn,$lat,common_pid)", true},
		{"keys=num,d.buckets=10:vals=d,common_pid", from + " keys=u:lat=common_timestamp-g.a.$ts0,other=i:onmatch(g.a).syn($lat,common_pid)", true},
		{"", from + " keys=u:vals=common_timestamp-$ts0,i", true},
		{"", "keys=u,c:v0=c,v1=i,ts0=common_timestamp keys=u,c.hex:vals=i-$v1 keys=u,h:vals=common_timestamp-$ts0 keys=u,h:vals=u-$v0", true},
		{"", "keys=u:ts0=common_timestamp.usecs keys=u:vals=common_timestamp.usecs-$ts0", true},
		{"", "keys=common_pid:p0=common_pid keys=common_cpu:vals=u-$p0", true},
		{"", from + " keys=i", true},

		{"", from + " " + dur + ":onmatch(g.a).trace(syn,$lat,common_pid)", false}, // its lines are printed
		{"keys=d if d > 5", from + " " + dur + ":onmatch(g.a).trace(syn,$lat,common_pid)", false},
		{"keys=d:d2=d", from + " " + dur + ":onmatch(g.a).trace(syn,$lat,common_pid)", false},
		{"keys=d,common_pid.execname", from + " " + dur + ":onmatch(g.a).trace(syn,$lat,common_pid)", false},
		{"keys=d", from + " " + dur + ":onmatch(g.a).trace(syn,$ts0,common_pid)", false},
		{"keys=d", from + " " + dur + ":onmatch(g.b).trace(syn,$lat,common_pid)", false},
		{"keys=d", from + " " + dur + ":onmax($lat).save(common_pid)", false},
		{"", from + " keys=s:vals=common_timestamp-$ts0", false},
		{"", from + " keys=u,c:vals=common_timestamp-$ts0", false}, // other keys
		{"", from + " keys=u:vals=$ts0-common_timestamp", false},
		{"", from + " keys=u:vals=$ts0", false},
		{"", from + " keys=u:vals=common_timestamp-$ts0,common_timestamp-$ts0-5", false},
		{"", from + " keys=u:vals=common_timestamp.usecs-$ts0", false},
		{"", from + ":x=common_timestamp.usecs keys=u:vals=common_timestamp-$ts0", false},
		{"", "keys=u:a0=c,b0=i keys=u:vals=i-$a0,i-$b0", false}, // two variables
		{"", "keys=u:v0=u keys=u:vals=u-$v0", false},            // 8 bytes, and whether it is set
		{"", "keys=u:v0=s keys=u:vals=u-$v0", false},
		{"", from + " " + from + " keys=u:vals=common_timestamp-$ts0", false}, // which?
		{"", "keys=u:vals=common_timestamp-$ts0 " + from, false},
		{"", from + ":pause keys=u:vals=common_timestamp-$ts0", false},
	} {
		evs := linked(t, c.traced, strings.Split(strings.ReplaceAll(c.hists, " if ", "_if_"), " ")...)
		for _, e := range evs {
			if c.hists == from+" keys=i" && e.Name == "b" {
				if e.Linked || e.Hist != nil {
					t.Errorf("%s: it refers to nothing, and nothing to it", e.Def.Text)
				}
			} else if !e.Linked || (e.Hist != nil) != c.ok {
				t.Errorf("%q, %q: %s is compiled: %v", c.hists, c.traced, e.Name, e.Hist != nil)
			}
		}
	}
}
