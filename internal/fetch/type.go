package fetch

import "kprobes.dev/kprobes/event"

// Type says how the stored value is shown. An array's elements each have it.
type Type struct {
	Kind  event.TypeKind
	Size  int // bytes of a number: 1, 2, 4, 8; 0 of a string
	Width int // event.Bits: bits of the field
	Shift int // event.Bits: its lowest bit
}

// IsString says whether values are strings of bytes.
func (t Type) IsString() bool { return event.TypeSpec{Kind: t.Kind}.IsString() }
