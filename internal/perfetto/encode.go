package perfetto

import (
	"encoding/binary"
	"strings"
)

// message is a protobuf message in the making: fields are appended (protobuf's encoding, "wire format").
type message []byte

// The wire types.
const (
	wireVarint = 0
	wireFixed  = 1
	wireBytes  = 2
)

func (m *message) tag(field, wire int) { *m = binary.AppendUvarint(*m, uint64(field)<<3|uint64(wire)) }

// uint appends a field of uint32, uint64, bool or an enum, or an int64 in two's complement.
func (m *message) uint(field int, v uint64) {
	m.tag(field, wireVarint)
	*m = binary.AppendUvarint(*m, v)
}

// fixed appends a field of fixed64.
func (m *message) fixed(field int, v uint64) {
	m.tag(field, wireFixed)
	*m = binary.LittleEndian.AppendUint64(*m, v)
}

// text appends a field of string, with U+FFFD for what is not UTF-8.
func (m *message) text(field int, s string) {
	s = strings.ToValidUTF8(s, "\uFFFD")
	m.tag(field, wireBytes)
	*m = append(binary.AppendUvarint(*m, uint64(len(s))), s...)
}

// sub appends a field that is a message.
func (m *message) sub(field int, sub message) {
	m.tag(field, wireBytes)
	*m = append(binary.AppendUvarint(*m, uint64(len(sub))), sub...)
}
