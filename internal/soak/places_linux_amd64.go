package soak

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
)

// probe is one probe of a round.
type probe struct {
	place  // of the instruction, or of the function's start (ret)
	name   string
	ret    bool   // a return probe
	text   string // its definition
	count  bool   // it only counts
	call   bool   // a handler of the engine's is called
	toggle bool   // it is removed in the middle, and added anew
	half   bool   // toggle: it is removed only
	def    *event.Def
}

// chooser picks places.
type chooser struct {
	s    *Stage
	rng  *rand.Rand
	ran  [2][]place // instructions that are known to run, in order: of objects that dispatch, of others
	seen map[place]bool
}

func (s *Stage) chooser(rng *rand.Rand) *chooser {
	c := &chooser{s: s, rng: rng, seen: map[place]bool{}}
	for p := range s.ran {
		switch o := s.object(p.obj); {
		case o == nil:
		case o.dispatches():
			c.ran[0] = append(c.ran[0], p)
		default:
			c.ran[1] = append(c.ran[1], p)
		}
	}
	for _, ps := range c.ran {
		slices.SortFunc(ps, comparePlaces)
	}
	return c
}

func comparePlaces(a, b place) int {
	return cmp.Or(strings.Compare(a.obj, b.obj), cmp.Compare(a.addr, b.addr))
}

// Of the places some are anywhere in the objects, the others run; of these most are in
// objects of which callgrind can tell.
const (
	coldPercent     = 8
	dispatchPercent = 20
)

// one picks a place that was not picked before and that may be probed.
func (c *chooser) one() (place, bool) {
	for range 1000 {
		var p place
		ran := c.ran[1]
		if len(ran) == 0 || len(c.ran[0]) > 0 && c.rng.IntN(100) < c.s.dispatchPercent() {
			ran = c.ran[0]
		}
		if len(ran) > 0 && c.rng.IntN(100) >= coldPercent {
			p = ran[c.rng.IntN(len(ran))]
		} else {
			p = c.anywhere()
		}
		o := c.s.object(p.obj)
		if o == nil || c.seen[p] || o.iterates(p.addr) {
			continue
		}
		if fn, _, ok := o.Image.At(p.addr); !ok || fn.PLT || fn.IFunc {
			continue // no function is known there, or one that stands for another: it would be refused
		}
		c.seen[p] = true
		return p, true
	}
	return place{}, false
}

func (s *Stage) dispatchPercent() int {
	if s.Referee == Callgrind {
		return dispatchPercent
	}
	return 75
}

// anywhere picks an instruction of any function of any object.
func (c *chooser) anywhere() place {
	o := c.s.Objects[c.rng.IntN(len(c.s.Objects))]
	fns := o.Image.Funcs()
	if len(fns) == 0 {
		return place{}
	}
	at := o.instructions(fns[c.rng.IntN(len(fns))])
	if len(at) == 0 {
		return place{}
	}
	return place{o.Name, at[c.rng.IntN(len(at))]}
}

// function picks the start of a function, one that runs if such are known.
func (c *chooser) function() (place, bool) {
	for range 1000 {
		p, ok := c.one()
		if !ok {
			return p, false
		}
		fn, _, ok := c.s.object(p.obj).Image.At(p.addr)
		at := place{p.obj, fn.Addr}
		if ok && fn.Candidate() && fn.Source != symbol.SourceEHFrame && !c.seen[at] {
			c.seen[at] = true
			return at, true
		}
	}
	return place{}, false
}

// arguments are what events record: registers and memory.
var arguments = []string{
	" at=%ip:x64 ax=%ax bx=%bx di=%di r15=%r15 sp=%sp",
	" at=%ip:x64 c=$stack2 flags=%flags who=$comm",
	" at=%ip:x64 top=+0(%sp):x64 cx=%cx:s16",
	" at=%ip:x64 deep=+0(+0(%sp)):u32 r8=%r8",
	" at=%ip:x64 text=+0(%di):string",
	" at=%ip:x64 a=+0(%si):x8[4] b=-8(%bp):s32",
}

// probes picks n instructions and rets functions, and what is done there.
func (c *chooser) probes(n, rets int) []*probe {
	var out []*probe
	for i := range n + rets {
		b := &probe{name: fmt.Sprintf("e%d", i), ret: i >= n}
		pick := c.one
		if b.ret {
			pick = c.function
		}
		p, ok := pick()
		if !ok {
			continue
		}
		b.place = p
		b.count = c.rng.IntN(3) == 0
		b.text = fmt.Sprintf("p:%s %s", b.name, c.where(p))
		switch {
		case b.ret:
			b.text = "r" + b.text[1:]
			if !b.count {
				b.text += " v=$retval a=$arg1"
			}
		case !b.count:
			b.text += arguments[c.rng.IntN(len(arguments))]
		}
		out = append(out, b)
	}
	return out
}

// where names a place as a definition does.
func (c *chooser) where(p place) string {
	if c.s.object(p.obj).Main {
		return fmt.Sprintf("0x%x", p.addr)
	}
	return p.String()
}

// parse makes the definition of a probe.
func (b *probe) parse() (err error) {
	if b.def, err = event.Parse(b.text); err == nil && !b.count && b.addr%3 == 0 {
		b.def.Stack = 6
	}
	return err
}
