// Program goasserts calls functions with interfaces of all kinds, and prints before each call what type assertions find in them: 0, or
// "(fault)" of a string, where the value has another type. It begins when it has read a line, and ends at the next.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

type shape interface{ area() int }

type square struct {
	side int
	name string
}

type circle struct {
	r   int32
	tag [3]uint16
}

type wrap struct{ p *square }

type pair[K comparable, V any] struct {
	key K
	val V
}

type num int8

type call func(int) int

type holder struct {
	pad [5]int
	in  shape
	any any
}

type notFound struct {
	key  string
	code int16
}

func (s *square) area() int     { return s.side }
func (c circle) area() int      { return int(c.r) }
func (w wrap) area() int        { return w.p.side }
func (p *pair[K, V]) area() int { return 1 }
func (n *notFound) Error() string {
	return n.key
}

// as is what an assertion of a number finds.
func as[T any](v any, number func(T) int) string {
	if t, ok := v.(T); ok {
		return strconv.Itoa(number(t))
	}
	return "0"
}

// text is what an assertion of a string finds.
func text[T any](v any, of func(T) string) string {
	if t, ok := v.(T); ok {
		return strconv.Quote(of(t))
	}
	return "(fault)"
}

var looked, given int

//go:noinline
func look(s shape, x any, h *holder) { looked++ }

//go:noinline
func give(n int) (shape, error) {
	given++
	switch n % 4 {
	case 0:
		return &square{n, "made"}, nil
	case 1:
		return circle{r: int32(n)}, &notFound{"key" + strconv.Itoa(n), int16(-n)}
	case 2:
		return nil, &notFound{"", 7}
	}
	return nil, os.ErrClosed
}

func side(s *square) int                { return s.side }
func itself(s string) string            { return s }
func value(p *pair[int, string]) string { return p.val }

func tell(s shape, x any, h *holder) {
	fmt.Println("look",
		as(s, side), text(s, func(s *square) string { return s.name }),
		as(s, func(c circle) int { return int(c.r) }), as(s, func(c circle) int { return int(c.tag[1]) }),
		as(s, func(w wrap) int { return w.p.side }), text(s, value),
		as(x, func(n int) int { return n }), text(x, itself), as(x, func(n num) int { return int(n) }), as(x, side),
		as(x, func(p pair[string, num]) int { return int(p.val) }),
		as(h.in, side), text(h.any, itself),
		as(x, func(h holder) int { c, _ := h.in.(circle); return int(c.r) }))
	look(s, x, h)
}

func main() {
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	in.ReadString('\n')
	shapes := []shape{nil, &square{11, "eleven"}, circle{-5, [3]uint16{1, 60000, 3}}, wrap{&square{side: -8}}, &pair[int, string]{4, "four"}, &pair[string, int]{"five", 5}}
	values := []any{
		nil, 42, "text", num(-3), &square{99, "s"}, pair[string, num]{"k", 100}, pair[int, num]{1, 2}, holder{in: circle{r: 77}},
		holder{in: wrap{}}, call(nil), uint8(1), error(&notFound{"e", 1}), [1]*square{{side: 3}},
	}
	for i := range 120 {
		h := &holder{in: shapes[i/2%len(shapes)], any: values[i/3%len(values)]}
		tell(shapes[i%len(shapes)], values[i%len(values)], h)
		s, err := give(i)
		fmt.Println("give", i, as(s, side), as(s, func(c circle) int { return int(c.r) }), text(err, func(e *notFound) string { return e.key }), as(err, func(e *notFound) int { return int(e.code) }))
	}
	fmt.Println("done")
	in.ReadString('\n')
}
