package perfetto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
)

// fields takes a message apart: its fields in their order, numbers as they are, and bytes.
func fields(t *testing.T, b []byte) (ids []int, values []any) {
	t.Helper()
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		b = b[n:]
		ids = append(ids, int(tag>>3))
		switch tag & 7 {
		case wireVarint:
			v, n := binary.Uvarint(b)
			values, b = append(values, v), b[n:]
		case wireFixed:
			values, b = append(values, binary.LittleEndian.Uint64(b)), b[8:]
		case wireBytes:
			size, n := binary.Uvarint(b)
			values, b = append(values, b[n:n+int(size)]), b[n+int(size):]
		default:
			t.Fatalf("wire type %d", tag&7)
		}
	}
	return ids, values
}

// events gives the kind and the track of each event of a trace, with its time.
func events(t *testing.T, trace []byte) (out [][3]uint64) {
	t.Helper()
	_, packets := fields(t, trace)
	for _, p := range packets {
		ids, values := fields(t, p.([]byte))
		i := slices.Index(ids, packetTrackEvent)
		if i < 0 {
			continue
		}
		eids, of := fields(t, values[i].([]byte))
		out = append(out, [3]uint64{of[slices.Index(eids, eventType)].(uint64), of[slices.Index(eids, eventTrack)].(uint64) &^ (1<<63 | 7<<60), values[slices.Index(ids, packetTimestamp)].(uint64)})
	}
	return out
}

// TestCalls has calls that return, that do not, and whose entries were not recorded.
func TestCalls(t *testing.T) {
	const f, g, h = 0x10, 0x20, 0x30
	var out bytes.Buffer
	tr := New(&out, Target{Name: "x"})
	tr.Returns(f)
	tr.Returns(g)
	at := func(nanos uint64) *Event {
		return &Event{Nanos: nanos, CPU: 3, TID: 7, Group: "g", Name: "e"}
	}
	for _, err := range []error{
		tr.Enter(at(10), f), tr.Enter(at(20), g), tr.Enter(at(30), h), // returns of h are not events yet
		tr.Return(at(40), f, 0),  // g was left
		tr.Return(at(50), g, 0),  // its entry is not open any more
		tr.Return(at(60), h, 15), // it tells how long it took
		tr.Enter(at(70), h),      // it goes on at the end
		tr.Lost(80, 3, 5), tr.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := [][3]uint64{
		{sliceBegin, 7, 10},
		{instant, 3, 10},
		{sliceBegin, 7, 20},
		{instant, 3, 20},
		{instant, 7, 30},
		{instant, 3, 30},
		{sliceEnd, 7, 40},
		{sliceEnd, 7, 40},
		{instant, 3, 40},
		{instant, 7, 50},
		{instant, 3, 50},
		{sliceBegin, 7, 45},
		{sliceEnd, 7, 60},
		{instant, 3, 60},
		{sliceBegin, 7, 70},
		{instant, 3, 70},
		{instant, 3, 80},
	}
	if got := events(t, out.Bytes()); !slices.Equal(got, want) || tr.Unreturned != 1 {
		t.Errorf("%d unreturned, events\n%v, want\n%v", tr.Unreturned, got, want)
	}
}

// broken is an output that takes nothing.
type broken struct{}

var errBroken = errors.New("no room")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// TestBroken has the error of the output come back.
func TestBroken(t *testing.T) {
	tr := New(broken{}, Target{})
	var err error
	for i := range uint64(1 << 20) {
		if err = tr.Return(&Event{Nanos: i, Name: "e", Group: "g"}, 1, time.Nanosecond); err != nil {
			break
		}
	}
	if !errors.Is(err, errBroken) || !errors.Is(tr.Close(), errBroken) {
		t.Errorf("%v", err)
	}
}
