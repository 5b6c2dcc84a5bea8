package demoapp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// What a client does.
const (
	keysPerClient = 400
	burst         = 8                // requests, and then a pause
	pause         = time.Millisecond // so that the demo leaves the machine to others
	sumEvery      = 64               // requests
	setEvery      = 5
	missEvery     = 7
	touchEvery    = 3
	stride        = 37 // walks through all keys: it shares no factor with their number
)

// request is what a client sends, and the answer that it must get.
type request struct {
	text string
	want int
}

// load makes a client's requests. It knows every answer, since nobody else uses its
// database.
type load struct {
	id   int
	keys []int // the values it has set; those of keys that it has not set are absent
	sum  int
	n    int
}

func (l *load) next() request {
	l.n++
	k := l.n * stride % keysPerClient
	switch {
	case l.n <= keysPerClient:
		l.keys = append(l.keys, 0)
		return l.set(l.n-1, l.n)
	case l.n%sumEvery == 0:
		return request{fmt.Sprintf("sum %d", l.id), l.sum}
	case l.n%setEvery == 0:
		return l.set(k, l.n)
	case l.n%missEvery == 0:
		return l.get(keysPerClient+k, -1)
	}
	return l.get(k, l.keys[k])
}

func (l *load) set(k, v int) request {
	l.sum += v - l.keys[k]
	l.keys[k] = v
	return request{fmt.Sprintf("set %d user:%d %d", l.id, k, v), len(l.keys)}
}

func (l *load) get(k, want int) request {
	flags := 0
	if l.n%touchEvery == 0 {
		flags = flagTouch
	}
	return request{fmt.Sprintf("get %d %d user:%d", l.id, flags, k), want}
}

// client sends requests for as long as the process lives.
func (a *app) client(id int, c net.Conn) {
	answers := bufio.NewReader(c)
	l := &load{id: id}
	for {
		for range burst {
			if err := a.request(l.next(), c, answers); err != nil {
				a.fail(fmt.Errorf("client %d: %w", id, err))
				return
			}
		}
		time.Sleep(pause)
	}
}

// request makes one request and checks the answer.
func (a *app) request(r request, c io.Writer, answers *bufio.Reader) error {
	a.gate.RLock()
	defer a.gate.RUnlock()
	if _, err := io.WriteString(c, r.text+"\n"); err != nil {
		return err
	}
	line, err := answers.ReadString('\n')
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSuffix(line, "\n")); err != nil || n != r.want {
		a.wrong.Add(1)
	}
	return nil
}
