package ring

import (
	"encoding/binary"
	"testing"
)

// memRing is a ring without a file, for tests that need many.
func memRing(t testing.TB, cfg Config) *Ring {
	t.Helper()
	l, err := NewLayout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &Ring{Layout: l, mem: make([]byte, l.Size()), fd: -1}
	r.writeHeader()
	return r
}

// FuzzReader plays a script of 9-byte steps: what to do, and a number. Between the steps,
// and from inside of Poll's function, any word of the shared memory is overwritten.
func FuzzReader(f *testing.F) {
	step := func(ops ...uint64) []byte {
		var b []byte
		for i := 0; i+1 < len(ops); i += 2 {
			b = append(b, byte(ops[i]))
			b = binary.LittleEndian.AppendUint64(b, ops[i+1])
		}
		return b
	}
	f.Add(step(opWrite, 0, opWrite, 1, opPoll, 0, opDrain, 0))
	f.Add(step(opWrite, 1, opScribbleHead, 1<<48, opPoll, 0, opReap, 0))
	f.Add(step(opScribbleHead, ^uint64(0), opScribbleTail, 5, opDrain, 0, opMark, 0, opWrite, 1, opReap, 0))
	f.Add(step(opWrite, 0, opWrite, 0, opScribbleData, 4, opInside, 3, opPoll, 0, opTime, 1<<40, opDrain, 0))
	f.Add(step(opAbandon, 3, opWrite, 1, opWrite, 1, opMark, 0, opPoll, 0, opReap, 0, opWrite, 1))
	f.Fuzz(func(t *testing.T, script []byte) {
		r := memRing(t, Config{CPUs: 1, Events: 4, DataSize: MinData})
		rd, clock := newTestReader(t, r)
		p := &player{t: t, r: r, rd: rd, clock: clock}
		for range 200 {
			if len(script) < 9 {
				break
			}
			p.play(script[0]%opCount, binary.LittleEndian.Uint64(script[1:]))
			script = script[9:]
		}
		p.inside = 0
		clock.now = 1 << 62
		recovers(t, r, rd)
	})
}

const (
	opWrite = iota
	opAbandon
	opPoll
	opDrain
	opMark
	opReap
	opScribbleHead
	opScribbleTail
	opScribbleRead
	opScribbleData
	opInside
	opTime
	opJoin
	opCount
)

type player struct {
	t      *testing.T
	r      *Ring
	rd     *Reader
	clock  *manual
	mark   Mark
	inside uint64 // what is scribbled when a record is given out
}

func (p *player) play(op byte, v uint64) {
	shard := int(v >> 63)
	switch op {
	case opWrite:
		writerOf(p.r, shard).write(uint32(1+v%2), 1, p.clock.now-v%200, v, v)
	case opAbandon:
		abandon(p.r, 1, v)
	case opPoll, opDrain:
		p.read(op)
	case opMark:
		p.mark = p.rd.Mark()
	case opReap:
		if lost := p.rd.Reap(p.mark); lost > p.r.LockedUnits()/2 {
			p.t.Fatalf("%d reaped of a shard that holds %d units", lost, p.r.LockedUnits())
		}
	case opScribbleHead:
		poke(p.r, shard, ShHead, v<<1)
	case opScribbleTail:
		poke(p.r, shard, ShTail, v<<1)
	case opScribbleRead:
		poke(p.r, shard, ShRead, v<<1)
	case opScribbleData:
		poke(p.r, shard, p.r.DataOff()+v%(p.r.Data+Slack)&^7, v>>7)
	case opInside:
		p.inside = v
	case opTime:
		p.clock.now = max(p.clock.now, v%(1<<50))
	case opJoin:
		p.join()
	}
}

// join replaces the reader, as after a crash of the tracer.
func (p *player) join() {
	p.rd = NewReader(p.r, &ReaderConfig{Margin: 100, Now: p.clock.Now})
	allow(p.t, p.rd, 1, 16, 64)
	allow(p.t, p.rd, 2, 32, 32)
	p.mark = Mark{}
}

func (p *player) read(op byte) {
	n := 0
	fn := func(rec Record) {
		n++
		if rec.Event != 1 && rec.Event != 2 || len(rec.Bytes) < 16 || len(rec.Bytes) > 64 || len(rec.Bytes)%8 != 0 {
			p.t.Fatalf("impossible record %+v", rec)
		}
		if p.inside != 0 {
			poke(p.r, int(p.inside>>63), p.r.DataOff()+p.inside%(p.r.Data+Slack)&^7, p.inside)
			poke(p.r, int(p.inside>>63), p.inside>>8%3*64, p.inside<<1)
		}
	}
	before := p.rd.Stats().Read
	if op == opPoll {
		p.rd.Poll(fn)
	} else {
		p.rd.Drain(fn)
	}
	if got := p.rd.Stats().Read - before; got != uint64(n) || n > 1<<16 {
		p.t.Fatalf("%d records given out, %d counted", n, got)
	}
}
