//go:build !race

package kprobes

import (
	"encoding/binary"
	"testing"
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
	c, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	inside, free, done := make(chan bool), make(chan bool), make(chan uint64)
	var returns, call, data uint64
	r := &Kretprobe{
		Kp: Kprobe{SymbolName: "kprobes.dev/kprobes.waitsInside"}, DataSize: 8,
		EntryHandler: func(ri *KretprobeInstance, r *Regs) int {
			binary.NativeEndian.PutUint64(ri.Data, r.Arg(0))
			return 0
		},
		Handler: func(ri *KretprobeInstance, r *Regs) int {
			returns, call, data = returns+1, r.AX, binary.NativeEndian.Uint64(ri.Data)
			return 0
		},
	}
	if err := c.RegisterKretprobe(r); err != nil {
		t.Fatal(err)
	}
	defer c.UnregisterKretprobe(r)
	go func() {
		for n := range uint64(3) {
			done <- callWaits(n, inside, free)
		}
	}()
	<-inside // call 0, whose entry is seen
	if err := c.DisableKretprobe(r); err != nil {
		t.Fatal(err)
	}
	free <- true
	<-done
	<-inside // call 1, which is not
	c.mu.Lock()
	p := r.Kp.load()
	p.disabled = false
	wake([]*probe{p})
	err = c.update([]*function{p.ev.fn}, stopping{then: func() error { // as the optimiser does
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
	if returns != 0 {
		t.Errorf("%d return handlers ran, the last of call %d with the data of call %d: none of their entries was seen", returns, call, data)
	}
}
