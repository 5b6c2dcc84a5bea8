//go:build !race

package engine

import (
	"encoding/binary"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/self"
)

// waitsInside tells that it runs, and waits until it may return.
//
//go:noinline
func waitsInside(n uint64, inside, free chan bool) uint64 {
	inside <- true
	<-free
	return n
}

var callWaits = waitsInside

// A goroutine's call has the same key as the one before from the same place. The instance of one whose return was not
// seen, since the code was out then, must not pass for the later call's, whose entry was not seen: also not when that
// returns at the moment at which new code is in and the engine has not noted it yet.
func TestReturnOfCallBeforeTheCode(t *testing.T) {
	tg, err := self.Attach(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []bool{true, false} {
		t.Run(map[bool]string{true: "data", false: "none"}[data], func(t *testing.T) { returnOfCallBefore(t, c, data) })
	}
}

func returnOfCallBefore(t *testing.T, c *Core, withData bool) {
	t.Helper()
	inside, free, done := make(chan bool), make(chan bool), make(chan uint64)
	const calls = 3
	var returns, data [calls]uint64
	h := Handlers{
		Return: func(c *Call, r *Regs) int {
			returns[r.AX]++
			if withData {
				data[r.AX] = binary.NativeEndian.Uint64(c.Data)
			}
			return 0
		},
		NewCall: func(*Call) {},
		Changed: func(uint64, bool) {},
	}
	o := ProbeOptions{Return: true}
	if withData {
		o.DataSize = 8
		h.Entry = func(c *Call, r *Regs) int {
			binary.NativeEndian.PutUint64(c.Data, r.Arg(0))
			return 0
		}
	}
	p := NewProbe(event.Place{Kind: event.PlaceSymbol, Symbol: "kprobes.dev/kprobes/internal/engine.waitsInside"}, h, o)
	if err := c.Register([]*Probe{p}, false); err != nil {
		t.Fatal(err)
	}
	defer c.Unregister(func(end func(*Probe)) { end(p) })
	go func() {
		for n := range uint64(calls) {
			done <- callWaits(n, inside, free)
		}
	}()
	<-inside // call 0, whose entry is seen
	if err := c.Enable(p, false); err != nil {
		t.Fatal(err)
	}
	free <- true
	<-done
	<-inside // call 1, which is not
	c.mu.Lock()
	p.disabled = false
	wake([]*Probe{p})
	err := c.update([]*function{p.ev.fn}, stopping{then: func() error { // as the optimiser does
		free <- true
		<-done
		<-inside // call 2
		return nil
	}})
	c.mu.Unlock()
	if err != nil {
		t.Error(err)
	}
	free <- true
	<-done
	if want := [calls]uint64{2: 1}; returns != want {
		t.Errorf("the returns of calls 0, 1 and 2 were seen so often: %d, with the data %d", returns, data)
	}
	if withData && data[2] != 2 {
		t.Errorf("call 2 has the data of call %d", data[2])
	}
}
