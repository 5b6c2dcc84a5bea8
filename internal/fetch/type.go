package fetch

import "kprobes.dev/kprobes/event"

// Type says how the stored value is shown. An array's elements each have it.
type Type struct {
	Kind  event.TypeKind
	Size  int // bytes of a number as it is stored: 1, 2, 4, 8; 0 of a string
	Width int // bits of the number that are the value: of event.Bits, of a member that is a bit field or a part of a register; else 0
	Shift int // the lowest of them
}

// IsString says whether values are strings of bytes.
func (t Type) IsString() bool { return event.TypeSpec{Kind: t.Kind}.IsString() }
