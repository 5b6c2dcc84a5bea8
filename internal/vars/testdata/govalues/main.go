// Program govalues is a cache with its clients: 20 functions and methods with parameters as Go programs have them, called always
// the same.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

type kind uint8

const (
	hot  kind = 1
	cold kind = 200
)

type point struct{ x, y int32 }

type entry struct {
	key   string
	value int64
	kind  kind
	at    point
	next  *entry
}

type cache struct {
	entries map[string]*entry
	first   *entry
	limit   int
	rate    float64
}

type policy interface {
	keep(e *entry, now int64) bool
}

type older struct{ than int64 }

//go:noinline
func (o older) keep(e *entry, now int64) bool { return now-e.value < o.than }

//go:noinline
func newEntry(key string, value int64, k kind, at point) *entry {
	return &entry{key: key, value: value, kind: k, at: at}
}

//go:noinline
func (c *cache) put(e *entry, front bool) int {
	c.entries[e.key] = e
	if front {
		e.next, c.first = c.first, e
	}
	return len(c.entries)
}

//go:noinline
func (c *cache) get(key string) (e *entry, ok bool) { e, ok = c.entries[key]; return }

//go:noinline
func (c *cache) evict(p policy, now int64, most int) (n int) {
	for e := c.first; e != nil && n < most; e = e.next {
		if !p.keep(e, now) {
			n++
		}
	}
	return n
}

//go:noinline
func (c *cache) rated(by float64, up bool) float64 {
	if up {
		c.rate *= by
	}
	return c.rate
}

//go:noinline
func (c *cache) each(do func(e *entry) bool, from *entry) {
	for e := from; e != nil && do(e); e = e.next {
	}
}

//go:noinline
func (e *entry) moved(by point, scale int8) point {
	return point{e.at.x + by.x*int32(scale), e.at.y + by.y*int32(scale)}
}

//go:noinline
func (e *entry) is(k kind) bool { return e.kind == k }

//go:noinline
func hash(s string, seed uint64) uint64 {
	for i := range len(s) {
		seed = (seed ^ uint64(s[i])) * 0x100000001b3
	}
	return seed
}

//go:noinline
func sum(values []int, start int) int {
	for _, v := range values {
		start += v
	}
	return start
}

//go:noinline
func scale(values []int, by int16) {
	for i := range values {
		values[i] *= int(by)
	}
}

//go:noinline
func many(a int8, b uint16, c int32, d uint64, e bool, f rune, g int64, h uint8, i, j, k int) int64 {
	return int64(a) + int64(b) + int64(c) + int64(d) + int64(f) + g + int64(h) + int64(i+j+k)
}

//go:noinline
func triple(a, b, c string) int { return len(a) + len(b) + len(c) }

//go:noinline
func describe(v any, indent int) string { return strings.Repeat(" ", indent) + fmt.Sprint(v) }

//go:noinline
func check(err error, code uint32) uint32 {
	if err != nil {
		return code
	}
	return 0
}

//go:noinline
func depth(e *entry, n uint) uint {
	if e == nil {
		return n
	}
	return depth(e.next, n+1)
}

//go:noinline
func join(parts []string, sep string) string { return strings.Join(parts, sep) }

//go:noinline
func fixed(row [4]int16, at uint) int { return int(row[at%4]) }

//go:noinline
func clamp(v, lo, hi int64) int64 { return max(lo, min(v, hi)) }

//go:noinline
func report(out *strings.Builder, line string, width int) {
	out.WriteString(line)
	for out.Len()%width != 0 {
		out.WriteByte(' ')
	}
}

func main() {
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	in.ReadByte()
	c := &cache{entries: map[string]*entry{}, limit: 30, rate: 1}
	var n int64
	var out strings.Builder
	var values []int
	for i := range 40 {
		key := fmt.Sprint("key of ", i)
		k := hot
		if i%3 == 0 {
			k = cold
		}
		e := newEntry(key, int64(-i), k, point{int32(i), int32(-i)})
		n += int64(c.put(e, i%2 == 0))
		if e, ok := c.get(fmt.Sprint("key of ", i/2)); ok && e.is(hot) {
			n++
		}
		n += int64(c.evict(older{int64(i)}, int64(i*2), i%7)) + int64(c.rated(1.5, i%2 == 1))
		c.each(func(e *entry) bool { n += e.value; return e.value > -20 }, c.first)
		p := e.moved(point{3, int32(i)}, int8(-i))
		values = append(values, int(p.x))
		scale(values, int16(i%5-2))
		n += int64(sum(values, i)) + int64(hash(key, uint64(i))>>8)
		n += many(int8(-i), uint16(i*1000), -3, 1<<i, i%2 == 1, 'é', -1<<62, uint8(i), i, -i, 7) >> 4
		n += int64(triple(key, "", "third")) + int64(len(describe(p, i%4)))
		var err error
		if i%2 == 0 {
			err = os.ErrNotExist
		}
		n += int64(check(err, uint32(4e9))) + int64(depth(c.first, 0)) + int64(len(join([]string{key, "x"}, ", ")))
		n += int64(fixed([4]int16{1, -2, 3, int16(i)}, uint(i))) + clamp(n, -1000, int64(i))
		report(&out, key, 16)
	}
	fmt.Println(n, out.Len())
	fmt.Println("done")
	in.ReadByte()
}
