package otlp

import (
	"encoding/binary"
	"errors"
	"math"
)

// Wire types of protocol buffers.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// message is a message of protocol buffers while it is written.
type message []byte

func (m *message) tag(field, wire int) { *m = binary.AppendUvarint(*m, uint64(field<<3|wire)) }

// varint writes a number, also one that is 0.
func (m *message) varint(field int, v uint64) {
	m.tag(field, wireVarint)
	*m = binary.AppendUvarint(*m, v)
}

func (m *message) fixed64(field int, v uint64) {
	m.tag(field, wireFixed64)
	*m = binary.LittleEndian.AppendUint64(*m, v)
}

func (m *message) bytes(field int, b []byte) {
	m.tag(field, wireBytes)
	*m = append(binary.AppendUvarint(*m, uint64(len(b))), b...)
}

func (m *message) fixed32(field int, v uint32) {
	m.tag(field, wireFixed32)
	*m = binary.LittleEndian.AppendUint32(*m, v)
}

// text writes a string that is not empty.
func (m *message) text(field int, s string) {
	if s != "" {
		m.tag(field, wireBytes)
		*m = append(binary.AppendUvarint(*m, uint64(len(s))), s...)
	}
}

// nested writes a message within the message, in its place: its length, which stands before it, is known behind it.
func (m *message) nested(field int, f func(*message)) {
	m.tag(field, wireBytes)
	at := len(*m)
	*m = append(*m, 0) // the length of most has one byte
	f(m)
	n := len(*m) - at - 1
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	*m = append(*m, length[1:size]...)
	copy((*m)[at+size:], (*m)[at+1:at+1+n])
	copy((*m)[at:], length[:size])
}

// Proto encodes a batch as an ExportTraceServiceRequest.
func (b *Batch) Proto() []byte {
	var m message
	for _, of := range b.byResource() {
		m.nested(1, func(m *message) { // ResourceSpans
			m.nested(1, func(m *message) { m.attrs(1, of.attrs) })
			m.nested(2, func(m *message) { // ScopeSpans
				m.nested(1, func(m *message) {
					m.text(1, valid(b.Scope.Name))
					m.text(2, valid(b.Scope.Version))
				})
				for _, s := range of.spans {
					m.nested(2, s.proto)
				}
			})
		})
	}
	return m
}

func (s *Span) proto(m *message) {
	m.bytes(1, s.Trace[:])
	m.bytes(2, s.ID[:])
	if s.Parent != (SpanID{}) {
		m.bytes(4, s.Parent[:])
	}
	m.text(5, valid(s.Name))
	m.varint(6, uint64(s.Kind))
	m.fixed64(7, s.Start)
	m.fixed64(8, s.End)
	m.attrs(9, s.Attrs)
	if s.Status != StatusUnset {
		m.nested(15, func(m *message) {
			m.text(2, valid(s.Message))
			m.varint(3, uint64(s.Status))
		})
	}
	m.fixed32(16, s.flags())
}

// attrs writes attributes as KeyValue messages.
func (m *message) attrs(field int, as []Attr) {
	for _, a := range as {
		m.nested(field, func(m *message) {
			m.text(1, valid(a.Key))
			m.nested(2, func(m *message) { m.value(a.Value) })
		})
	}
}

// value writes the fields of an AnyValue.
func (m *message) value(v any) {
	switch v := plain(v).(type) {
	case string:
		m.tag(1, wireBytes) // an empty one too: that it is there tells its type
		*m = append(binary.AppendUvarint(*m, uint64(len(v))), v...)
	case bool:
		n := uint64(0)
		if v {
			n = 1
		}
		m.varint(2, n)
	case int64:
		m.varint(3, uint64(v))
	case float64:
		m.fixed64(4, math.Float64bits(v))
	case []any:
		m.nested(5, func(m *message) {
			for _, e := range v {
				m.nested(1, func(m *message) { m.value(e) })
			}
		})
	}
}

// errMessage is an answer that is no message of protocol buffers.
var errMessage = errors.New("the answer is no message of OTLP")

// fields calls f for each field of a message: with its number, or its bytes.
func fields(b []byte, f func(field int, num uint64, data []byte)) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 > math.MaxInt32 {
			return errMessage
		}
		b = b[n:]
		field := int(tag >> 3)
		switch tag & 7 {
		case wireVarint:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return errMessage
			}
			f(field, v, nil)
			b = b[n:]
		case wireBytes:
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return errMessage
			}
			f(field, 0, b[n:n+int(size)])
			b = b[n+int(size):]
		case wireFixed64, wireFixed32:
			size := 8
			if tag&7 == wireFixed32 {
				size = 4
			}
			if len(b) < size {
				return errMessage
			}
			b = b[size:]
		default:
			return errMessage
		}
	}
	return nil
}

// parseAnswer reads the partial success of an ExportTraceServiceResponse: how many spans the collector has not taken, and why.
func parseAnswer(b []byte) (a Answer, err error) {
	var in error
	err = fields(b, func(field int, _ uint64, partial []byte) {
		if field != 1 {
			return
		}
		in = fields(partial, func(field int, num uint64, data []byte) {
			switch field {
			case 1:
				a.Rejected = int64(num)
			case 2:
				a.Message = string(data)
			}
		})
	})
	return a, errors.Join(err, in)
}
