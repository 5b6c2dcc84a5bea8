// Command gotyped puts typed handlers on a function of its own, calls it, and prints for each handler a line of JSON: how it was put
// there, the arguments and results that it was called with, or the error that refused it.
package main

import (
	"encoding/json"
	"os"

	"kprobes.dev/kprobes"
)

// line is what is told of a handler.
type line struct {
	How      string  `json:"how"`
	Name     string  `json:"name"`
	N        int     `json:"n"`
	Rate     float64 `json:"rate"`
	Text     string  `json:"text"`
	Sum      float64 `json:"sum"`
	Returned float64 `json:"returned"` // what the call has given
	Err      string  `json:"err"`
}

type table struct{ base float64 }

//go:noinline
func (t *table) charge(name string, n int, rate float64) (text string, sum float64) {
	return name + "!", t.base + float64(n)*rate
}

const charge = "main.(*table).charge"

func main() {
	var l line
	t := &table{100}
	out := json.NewEncoder(os.Stdout)
	try := func(how string, on func() (off func(), err error)) {
		l = line{How: how}
		off, err := on()
		if err != nil {
			l.Err = err.Error()
		}
		_, l.Returned = t.charge("tea", 3, 1.5)
		if err == nil {
			off()
		}
		if err := out.Encode(l); err != nil {
			os.Exit(1)
		}
	}
	whole := func(t uintptr, name string, n int, rate float64, text string, sum float64) {
		l.N, l.Rate, l.Sum = n, rate, sum
		if name == "tea" && text == "tea!" && t != 0 { // what is in the arguments' memory must not be kept
			l.Name, l.Text = "tea", "tea!"
		}
	}
	called := func(_ *table, name string, n int, rate float64) {
		if l.N, l.Rate = n, rate; name == "tea" {
			l.Name = "tea"
		}
	}
	returned := func(fn, handler any) func() (func(), error) {
		return func() (func(), error) {
			r, err := kprobes.OnReturn(fn, handler)
			return func() { kprobes.UnregisterKretprobe(r) }, err
		}
	}
	for _, fn := range []any{(*table).charge, charge} {
		how := "func"
		if fn == any(charge) {
			how = "name"
		}
		try("call by "+how, func() (func(), error) {
			j, err := kprobes.OnCall(fn, called)
			return func() { kprobes.UnregisterJprobe(j) }, err
		})
		try("return by "+how, returned(fn, whole))
		try("results by "+how, returned(fn, func(text string, sum float64) {
			if l.Sum = sum; text == "tea!" {
				l.Text = "tea!"
			}
		}))
	}
	try("other arguments", returned(charge, func(_ uintptr, _ string, n int32, _ float64, _ string, _ float64) {}))
	try("other results", returned(charge, func(text string, sum int) {}))
}
