// Command boundary goes through code that it probes itself, with a pattern in everything that
// a thread has, and compares bit by bit what is there afterwards with what was there when
// nobody probed. It is internal/testprog's program of that name for the own process.
package main

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// What drive works on: general registers by their number, then the flags at a station's entry,
// and those inside of it; the words of the stack above the station's frame; where x87, vector
// and mask registers lie.
var (
	in, out   [18]uint64
	stack     [32]uint64
	target    uintptr
	xmask     uint32
	xin, xout *byte
)

func drive()
func xgetbv() uint32
func xsize() uint32
func setMXCSR(v uint32)
func getMXCSR() uint32

func table() *[11]uint64

// The stations, which are never called from here.
func callee()
func arithmetic()
func stacked()
func called()
func jumped()
func moves()
func left()
func sse()
func control()
func x87()
func vex()
func evex()

// station is a function that is gone through.
type station struct {
	name  string
	start uint64
	at    uint64 // bytes from there to the instruction that is probed
	needs uint32 // state components
	want  [seeds][]byte
	calls uint64 // since the last check began
}

// seeds are patterns, with all values of the arithmetic flags and DF among them.
const seeds = 128

const (
	needsAVX    = 4
	needsAVX512 = 0xe4
)

var stations = []*station{
	{name: "arithmetic"},
	{name: "stacked"},
	{name: "called"},
	{name: "jumped"},
	{name: "moves"},
	{name: "left"},
	{name: "sse"},
	{name: "control"},
	{name: "x87"},
	{name: "vex", needs: needsAVX},
	{name: "evex", needs: needsAVX512},
}

// direction is a bit of the flags.
const direction = 1 << 10

// Registers by number.
const (
	di = 7
	si = 6
)

var data []byte // what DI and SI point into

// mark stands before the instruction that is probed.
var mark = []byte{0x0f, 0x1f, 0x80, 0xfe, 0xca, 0x0d, 0x60}

// nop is what the station left has there.
var nop = []byte{0x0f, 0x1f, 0x80, 0x44, 0x33, 0x22, 0x11}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// retry calls f until the machine lets it: a stop of the threads takes its time under load.
func retry(f func() error) {
	var err error
	for range 100 {
		if err = f(); err == nil {
			return
		}
	}
	must(err)
}

func bytesAt(p *byte, n int) []byte { return unsafe.Slice(p, n) }

// prepare makes room, and finds the stations that this CPU can run.
func prepare() {
	xmask = xgetbv() & 0xe7
	m, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	xin, xout, data = &m[0], &m[1<<14], m[1<<15:][:768]
	var usable []*station
	for n, s := range stations {
		s.start = table()[n]
		if f := runtime.FuncForPC(uintptr(s.start)); f.Name() != "main."+s.name {
			must(fmt.Errorf("%s is %s", s.name, f.Name()))
		}
		if s.needs&^xmask != 0 {
			continue
		}
		code := bytesAt(*(**byte)(unsafe.Pointer(&s.start)), 256)
		i := bytes.Index(code, mark)
		if i < 0 {
			must(fmt.Errorf("no mark in %s", s.name))
		}
		s.at = uint64(i + len(mark))
		usable = append(usable, s)
	}
	stations = usable
}

// fill makes what a station is entered with.
func fill(seed int) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 7))
	pattern := func(b []byte) {
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
	}
	x := bytesAt(xin, int(xsize()))
	pattern(x)
	clear(x[512:576])
	binary.LittleEndian.PutUint32(x[512:], xmask)
	binary.LittleEndian.PutUint16(x, uint16(0x33f|seed&3<<10|seed&4<<6))
	binary.LittleEndian.PutUint16(x[2:], uint16(seed&7<<11|int(rnd.Uint32()&0x4720)))
	x[5] = 0
	x[7] &= 7
	binary.LittleEndian.PutUint64(x[8:], 0x1234567890)
	binary.LittleEndian.PutUint64(x[16:], 0x1234567898)
	binary.LittleEndian.PutUint32(x[24:], 0x1f80|rnd.Uint32()&0xe07f)
	binary.LittleEndian.PutUint32(x[28:], 0xffff)
	for i := range 8 { // normal numbers
		st := x[32+16*i:][:16]
		st[7] |= 0x80
		st[8], st[9] = byte(0xf0+i), 0x3f
		clear(st[10:])
	}
	for i := range in {
		in[i] = rnd.Uint64()
	}
	for i := range stack {
		stack[i] = rnd.Uint64()
	}
	pattern(data)
	in[di] = uint64(uintptr(unsafe.Pointer(&data[256])))
	in[si] = uint64(uintptr(unsafe.Pointer(&data[512])))
	flags := uint64(0x202 | seed&1<<21)
	for i, bit := range []int{0, 2, 4, 6, 7, 11, 10} {
		flags |= uint64(seed>>i&1) << bit
	}
	in[16], in[17] = flags&^direction, flags // Go code may check the function's stack
	clear(bytesAt(xout, int(xsize())))
}

// once runs a station and gives what it leaves, but for the address of the last x87
// instruction and the CPU's notes on what is in use.
func once(s *station, seed int) []byte {
	fill(seed)
	target = uintptr(s.start)
	s.calls++
	drive()
	x := bytesAt(xout, int(xsize()))
	clear(x[8:16])
	clear(x[512:576])
	b := bytes.Clone(x)
	for _, r := range out {
		b = binary.LittleEndian.AppendUint64(b, r)
	}
	for _, w := range stack {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return append(b, data...)
}

var bad int

// passes are what the worker is to do: it always has its stack at the same place, which what
// the stations leave depends on.
var passes, done = make(chan string), make(chan bool)

// worker makes the passes.
func worker() {
	runtime.LockOSThread()
	grow([64 << 10]byte{})
	for what := range passes {
		pass(what)
		done <- true
	}
}

// check lets the worker go through all stations, with all seeds.
func check(what string) {
	passes <- what
	<-done
}

func pass(what string) {
	for _, s := range stations {
		s.calls = 0
		for seed := range seeds {
			got := once(s, seed)
			// Where a function checks its stack the goroutine may be preempted, and then its
			// registers are not kept: that does not happen again and again.
			for again := 0; again < 5 && !bytes.Equal(got, s.want[seed]); again++ {
				if s.want[seed] == nil || what == first {
					s.want[seed] = got
				}
				got = once(s, seed)
			}
			if bytes.Equal(got, s.want[seed]) {
				continue
			}
			if bad++; bad < 20 {
				fmt.Printf("%s, %s, seed %d:%s\n", what, s.name, seed, differences(s.want[seed], got))
			}
		}
	}
}

// first is the pass in which nobody probes, and all is learned.
const first = "without probes"

// differences says where two results differ.
func differences(want, got []byte) (text string) {
	n, told := int(xsize()), 0
	for i := range want {
		if want[i] == got[i] || told > 8 {
			continue
		}
		told++
		switch {
		case i < n:
			text += fmt.Sprintf(" xsave+%d", i)
		case i < n+16*8:
			text += fmt.Sprintf(" register %d, byte %d", (i-n)/8, (i-n)%8)
		case i < n+18*8:
			text += fmt.Sprintf(" flags, byte %d", i-n-16*8)
		case i < n+18*8+len(stack)*8:
			text += fmt.Sprintf(" stack+%d", i-n-18*8)
		default:
			text += fmt.Sprintf(" data+%d", i-n-18*8-len(stack)*8)
		}
		text += fmt.Sprintf(" is %02x, want %02x", got[i], want[i])
	}
	return text
}

// Sinks of what the handlers do.
var (
	from, to [4096]byte
	quotient float64
	kept     atomic.Pointer[[64]int]
	runs     atomic.Int64
	divisor  = 3.0
	result   int
)

// busy does what changes vector registers and the flags of floating point, and allocates.
func busy() {
	copy(to[1:], from[:])
	copy(to[:100], to[7:])
	quotient = 1/divisor + quotient/divisor
	kept.Store(new([64]int))
	runs.Add(1)
}

// register arms a Kprobe with these handlers at each station, goes through, and disarms.
func register(what string, make func(s *station) *kprobes.Kprobe, optimise bool) {
	core, err := kprobes.Self()
	must(err)
	must(core.SetOptimization(optimise))
	var ks []*kprobes.Kprobe
	for _, s := range stations {
		k := make(s)
		k.Addr = s.start
		ks = append(ks, k)
	}
	retry(func() error { return kprobes.RegisterKprobes(ks) })
	check(what)
	for i, k := range ks {
		st := k.State()
		if st.Hits != stations[i].calls || st.Misses.Total() != 0 || (st.Tactic == "jump") != optimise {
			must(fmt.Errorf("%s, %s: %+v, fault %v", what, stations[i].name, st, k.Fault()))
		}
	}
	kprobes.UnregisterKprobes(ks)
	must(core.SetOptimization(true))
}

func pre(*kprobes.Kprobe, *kprobes.Regs) int            { busy(); return 0 }
func post(*kprobes.Kprobe, *kprobes.Regs, uint64)       { busy() }
func ret(*kprobes.KretprobeInstance, *kprobes.Regs) int { busy(); return 0 }

// leave has the thread go on behind a nop of seven bytes.
func leave(_ *kprobes.Kprobe, r *kprobes.Regs) int {
	busy()
	if !bytes.Equal(bytesAt(*(**byte)(unsafe.Pointer(&r.IP)), 7)[1:], nop[1:]) { // a breakpoint stands in its first byte
		return 0
	}
	r.IP += 7
	return 1
}

func handlers() {
	at := func(s *station) *kprobes.Kprobe { return &kprobes.Kprobe{Offset: s.at, PreHandler: pre} }
	register("a jump", at, true)
	register("a breakpoint", at, false)
	register("a pre and a post handler", func(s *station) *kprobes.Kprobe {
		return &kprobes.Kprobe{Offset: s.at, PreHandler: pre, PostHandler: post}
	}, true)
	register("a handler that leaves", func(s *station) *kprobes.Kprobe {
		return &kprobes.Kprobe{Offset: s.at, PreHandler: leave}
	}, false)
	register("an entry", func(*station) *kprobes.Kprobe { return &kprobes.Kprobe{PreHandler: pre} }, true)
	returns()
	compiled()
}

//go:noinline
func plain(a int) int { return a + 1 }

// compiled checks that the floating point that a handler does leaves no flag behind in a
// function that does none.
func compiled() {
	k := &kprobes.Kprobe{SymbolName: "main.plain", PreHandler: pre}
	retry(func() error { return kprobes.RegisterKprobe(k) })
	const clear, inexact = 0x1f80, 0x20
	for range 100 {
		setMXCSR(clear)
		result = plain(1)
		if v := getMXCSR(); v&inexact != 0 {
			fmt.Printf("MXCSR is %#x after a handler\n", v)
			bad++
			break
		}
	}
	kprobes.UnregisterKprobe(k)
}

func returns() {
	var rs []*kprobes.Kretprobe
	for _, s := range stations {
		rs = append(rs, &kprobes.Kretprobe{Kp: kprobes.Kprobe{Addr: s.start}, EntryHandler: ret, Handler: ret})
	}
	retry(func() error { return kprobes.RegisterKretprobes(rs) })
	check("returns")
	for i, r := range rs {
		if st := r.State(); st.Hits != stations[i].calls || st.Misses.Total() != 0 {
			must(fmt.Errorf("returns of %s: %+v", stations[i].name, st))
		}
	}
	kprobes.UnregisterKretprobes(rs)
}

// events uses compiled probes.
func events(args string, count bool) {
	core, err := kprobes.Self()
	must(err)
	var defs []*event.Def
	for _, s := range stations {
		for _, text := range []string{
			fmt.Sprintf("p:at_%s %#x%s", s.name, s.start+s.at, args),
			fmt.Sprintf("p:in_%s %#x%s", s.name, s.start, args),
			fmt.Sprintf("r:re_%s %#x v=%%ax", s.name, s.start),
		} {
			d, err := event.Parse(text)
			must(err)
			defs = append(defs, d)
		}
	}
	var evs []*kprobes.Event
	retry(func() (err error) { evs, err = core.Add(defs, &kprobes.AddOptions{Count: count}); return err })
	check("events" + args)
	for _, e := range evs {
		if c := core.Counts(e); count && c.Hits != callsOf(e.Name) {
			must(fmt.Errorf("%s: %+v", e.Name, c))
		}
	}
	retry(func() error { return core.Remove(evs) })
}

// callsOf is how often the station of an event was called in the last check.
func callsOf(event string) uint64 {
	for _, s := range stations {
		if event[3:] == s.name {
			return s.calls
		}
	}
	return 0
}

// grow makes the stack large enough for all that is to come.
//
//go:noinline
func grow(b [64 << 10]byte) byte { return b[xmask] }

func main() {
	debug.SetGCPercent(-1)
	prepare()
	go worker()
	check(first)
	events("", true)
	events(" ax=%ax r11=%r11 fl=%flags top=$stack0 w=+0(%di):u16 far=+0(+8(%dx)):u64 s=+0(%di):string bad=+0(%r9):string arr=+0(%di):x8[16]", false)
	handlers()
	if bad > 0 {
		fmt.Println(bad, "results differ")
		os.Exit(1)
	}
	fmt.Println("ok", len(stations), runs.Load())
}
