package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// restriction says whose hits are taken: of threads by their ids, and by their names.
type restriction struct {
	tids  []uint
	comms []string
}

func (r *restriction) flags(fl *pflag.FlagSet) {
	fl.UintSliceVar(&r.tids, "tid", nil, "only hits of these threads, by the ids that the target has for them: 4711,4712")
	fl.StringSliceVar(&r.comms, "comm", nil, "only hits of threads with these names; patterns with * and ? are taken")
}

// given says whether there is any.
func (r *restriction) given() bool { return len(r.tids)+len(r.comms) > 0 }

// check refuses a name that can not stand in a filter.
func (r *restriction) check() error {
	for _, c := range r.comms {
		if c == "" || strings.ContainsAny(c, `"`) {
			return usagef("--comm %q: the name of a thread, or a pattern, without quotes", c)
		}
	}
	return nil
}

// and joins the restriction to a filter.
func (r *restriction) and(filter string) string {
	var tids, comms, all []string
	for _, id := range r.tids {
		tids = append(tids, fmt.Sprintf("common_pid == %d", id))
	}
	for _, c := range r.comms {
		comms = append(comms, fmt.Sprintf("COMM ~ \"%s\"", c))
	}
	if !r.given() {
		return filter
	}
	for _, one := range []string{strings.Join(tids, " || "), strings.Join(comms, " || "), filter} {
		if one != "" {
			all = append(all, "("+one+")")
		}
	}
	return strings.Join(all, " && ")
}
