package arch

import "kprobes.dev/kprobes/internal/fetch"

// Scalar is one number of a value: an integer, an address or a floating-point number.
type Scalar struct {
	Off, Size int64 // bytes
	Float     bool
}

// Shape is what a calling convention asks of a parameter or a result.
type Shape struct {
	Size, Align int64    // bytes
	Scalars     []Scalar // all of them, by their offsets; those of a union overlap
	// ByRef: it is passed by its address (C++: not trivial to copy).
	ByRef bool
	// Array: it holds an array of more than one element.
	Array bool
}

// ValuePart says where a part of a value is.
type ValuePart struct {
	At        fetch.Base // a register, or a word of the stack
	Vector    bool       // it is in a vector register, which At does not name
	Off, Size int64      // bytes of the value that it has
	Bits      int        // the low ones of them that count, the others are 0; 0: all count
}

// Placement says where a value is; one without parts takes no room.
type Placement struct {
	Parts []ValuePart
	// Memory: the value is in memory, Off bytes from what the only part holds, which is the address.
	Memory bool
	Off    int64
}
