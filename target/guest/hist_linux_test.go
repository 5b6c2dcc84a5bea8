package guest_test

import (
	"errors"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/testguest"
)

// opens opens files: some are there, and some often.
func opens(g *testguest.Guest) {
	g.Hit("open", 40, 0)
	g.Shell("for i in 1 2 3; do cat /proc/uptime /proc/version /no/$i >/dev/null 2>&1; done; true")
}

// TestHistograms compares histograms with those that the guest's own tracer makes in the same calls: the whole text.
func TestHistograms(t *testing.T) {
	const def = "do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring flags=+0(%dx):u64 how=%dx fn=+0(%sp):u64"
	const filter = ` if COMM == "hit" || COMM == "cat"`
	g := testguest.Shared(t)
	specs := []string{
		"keys=dfd", "keys=dfd:vals=flags", "keys=flags.hex,dfd:vals=hitcount,flags.hex:sort=flags.descending", "keys=name:sort=name",
		"keys=name:vals=flags:sort=hitcount.descending,name", "keys=flags.log2:sort=flags", "keys=flags.buckets=1000:size=300:sort=flags",
		"keys=fn.sym", "keys=fn.sym-offset:vals=flags", "keys=dfd:vals=flags:sort=dfd.ascending", "keys=name,flags,dfd:sort=name.descending,flags",
		"keys=dfd.hex",
	}
	bad := []string{
		"keys=none", "keys=dfd.none", "keys=", "keys=dfd:sort=", "keys=dfd:sort=flags", "keys=dfd:sort=dfd.up", "keys=dfd:sort=,dfd", "keys=dfd:vals=none",
		"keys=dfd.buckets=0", "keys=dfd:sort=dfd,hitcount,dfd", "vals=dfd", "keys=dfd.execname", "keys=dfd:vals=",
	}
	ownEvents(t, g, "p:own "+def)
	trigger := own + "own/trigger"
	its := map[string]string{}
	for _, s := range specs {
		if e := g.Write(trigger, "hist:"+s+filter, true); e != 0 {
			t.Fatalf("the guest's own %s: %v", s, e)
		}
		opens(g)
		text, err := g.Read(own + "own/hist")
		if err != nil {
			t.Fatal(err)
		}
		its[s] = text
		g.Write(trigger, "!hist:"+s+filter, true)
	}
	logs := map[string]string{}
	for _, s := range bad {
		if e := g.Write(trigger, "hist:"+s, true); e == 0 {
			t.Errorf("%s: the guest's own tracer takes it", s)
		}
		log, err := g.Read(tracing + "error_log")
		if err != nil {
			t.Fatal(err)
		}
		logs[s] = log[strings.LastIndex(log, "hist:kprobes:own: error: ")+1:]
	}
	p := attach(t, g, nil)
	// add arms the event with what a histogram asks for.
	add := func(h *event.Hist) []*kprobes.Event {
		d, err := event.Parse("p:own " + def)
		if err != nil {
			t.Fatal(err)
		}
		d.Filter = h.Filter
		evs, err := p.core.Add([]*event.Def{d}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return evs
	}
	for _, s := range bad {
		h, err := event.ParseHist(s)
		if err == nil {
			evs := add(h)
			_, err = hit.NewHistogram(h, engine.OfEvent(evs[0]).Prog)
			if err := p.core.Remove(evs); err != nil {
				t.Fatal(err)
			}
		}
		var refused *event.HistError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", s, err)
			continue
		}
		_, ours, _ := strings.Cut(refused.Detail(), "error: ")
		if _, theirs, _ := strings.Cut(logs[s], "error: "); refused.Code != event.HistErrno && theirs != ours {
			t.Errorf("%s:\n%s\nthe guest's own:\n%s", s, ours, theirs)
		}
	}
	for _, s := range specs {
		h, err := event.ParseHist(s + filter)
		if err != nil {
			t.Fatal(err)
		}
		evs := add(h)
		hist, err := hit.NewHistogram(h, engine.OfEvent(evs[0]).Prog)
		if err != nil {
			t.Fatal(err)
		}
		p.hits = nil
		opens(g)
		p.poll()
		for i := range p.hits {
			k := &p.hits[i]
			vs, err := k.Event.Prog.Decode(k.Rec, k.Event.ArgsOff, k.Comm)
			if err != nil {
				t.Fatal(err)
			}
			hist.Add(k, vs, k.Comm)
		}
		if err := p.core.Remove(evs); err != nil {
			t.Fatal(err)
		}
		if got := string(hist.AppendText(nil, p.core.Symbol)); got != its[s] {
			t.Errorf("%s:\n%s\nthe guest's own:\n%s", s, got, its[s])
		}
	}
}
