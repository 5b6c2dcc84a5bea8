package hit

import (
	"fmt"
	"math"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// histField is a key, a value, what a variable is set to, or an operand of these: where it comes from and what it is.
type histField struct {
	event.HistField
	from   histSource
	def    *event.Hist // fromTime: whose it is
	arg    int         // fromArg: its index
	num    uint64      // fromConst
	ref    *histRef    // fromRef
	op     event.HistOp
	x, y   *histField // fromOp: its operands
	typ    string     // as a format file has it
	size   int
	signed bool
	text   bool
	stack  bool // the callers
	usecs  bool // .usecs was asked for
}

type histSource uint8

const (
	fromArg   histSource = iota
	fromPID              // the thread
	fromCPU              // the CPU
	fromStack            // the callers
	fromTime             // the time
	fromOne              // hitcount: 1 at each hit
	fromConst            // a number
	fromRef              // a variable
	fromOp               // an operation
)

// fieldOf finds a field of an event, and checks its modifier. However a stack is asked for, it is shown as .stacktrace.
func fieldOf(def *event.Hist, ev *histEvent, f event.HistField) (histField, error) {
	out, err := findField(def, ev, f)
	switch {
	case err != nil:
	case !out.stack && f.Mod == event.HistStacktrace:
		err = def.Refuse(event.HistBadFieldModifier, f.String(), "the field is no stack")
	case !out.stack || out.from == fromStack:
	case f.Mod == event.HistLog2 || f.Mod == event.HistBuckets:
		err = def.Refuse(event.HistBadFieldModifier, f.Mod.String(), "a stack is shown as it is")
	default:
		out.Mod, out.usecs = event.HistStacktrace, false
	}
	return out, err
}

func findField(def *event.Hist, ev *histEvent, f event.HistField) (histField, error) {
	out := histField{HistField: f, def: def, typ: "u64", size: 8, usecs: f.Mod == event.HistUsecs}
	switch f.Name {
	case "common_pid":
		out.from, out.typ, out.size, out.signed = fromPID, "int", 4, true
		return out, nil
	case "common_cpu", "cpu":
		out.from, out.typ, out.size = fromCPU, "unsigned int", 4
		return out, nil
	case "common_stacktrace":
		out.from, out.typ, out.stack = fromStack, "unsigned long[]", true
		return out, nil
	case event.HistTimestamp:
		out.from = fromTime
		return out, nil
	case event.HistHitcount:
		out.from = fromOne
		return out, nil
	}
	var names []string
	for i := range ev.fields {
		a := &ev.fields[i]
		if a.name != f.Name {
			names = append(names, a.name)
			continue
		}
		if a.array {
			return out, def.Refuse(event.HistErrno, f.Name, "an array is no field of a histogram")
		}
		out.arg, out.typ, out.size, out.signed, out.text, out.stack = i, a.typ, a.size, a.signed, a.text, a.stack
		return out, nil
	}
	return out, def.Refuse(event.HistFieldNotFound, f.Name, fmt.Sprintf("the event has %s; common_pid, common_cpu, common_timestamp and common_stacktrace are in all", strings.Join(append(names, "no other"), ", ")))
}

// number is a field's number at a hit.
func (f *histField) number(o *occurrence) uint64 {
	v := f.raw(o)
	switch f.Mod {
	case event.HistLog2:
		return uint64(ceilLog2(v))
	case event.HistBuckets:
		return v - v%f.Buckets
	}
	return v
}

func (f *histField) raw(o *occurrence) uint64 {
	switch f.from {
	case fromPID:
		return uint64(o.hit.TID)
	case fromCPU:
		return uint64(o.hit.CPU)
	case fromTime:
		if f.def.Usecs {
			return o.hit.Nanos / 1000
		}
		return o.hit.Nanos
	case fromOne:
		return 1
	case fromConst:
		return f.num
	case fromRef:
		return o.refs[f.ref.idx].num
	case fromOp:
		return f.operate(o)
	}
	v := &o.values[f.arg]
	o.unknown = o.unknown || v.Unknown
	if v.Arg.Type.Kind == event.Signed {
		return uint64(v.Arg.Type.Int(v.Num))
	}
	return v.Num
}

// operate computes an operation.
func (f *histField) operate(o *occurrence) uint64 {
	x, y := f.x.number(o), uint64(0)
	if f.y != nil {
		y = f.y.number(o)
	}
	switch f.op {
	case event.HistAdd:
		return x + y
	case event.HistSub:
		return x - y
	case event.HistMul:
		return x * y
	case event.HistNeg:
		return -x
	}
	if y == 0 {
		return math.MaxUint64
	}
	return x / y
}

// string is a field's string at a hit.
func (f *histField) string(o *occurrence) string {
	switch {
	case f.from == fromPID:
		return o.comm
	case f.from == fromRef:
		return o.refs[f.ref.idx].text
	}
	v := &o.values[f.arg]
	o.unknown = o.unknown || v.Unknown
	if v.Fault {
		return "(fault)"
	}
	return string(v.Str)
}

// frames appends a stack at a hit: the function that is probed, and its callers. The kernel keeps one less in a variable than in a key.
func (f *histField) frames(dst []fetch.StackFrame, o *occurrence) []fetch.StackFrame {
	switch f.from {
	case fromArg:
		return append(dst, o.values[f.arg].Stack...)
	case fromRef:
		return append(dst, o.refs[f.ref.idx].stack...)
	}
	n := len(dst)
	if !o.hit.Event.Return {
		dst = append(dst, fetch.StackFrame{PC: o.hit.Event.Addr, Interrupted: true})
	}
	dst, _, _ = o.hit.Callers(dst)
	return dst[:min(len(dst), n+event.HistCallers)]
}

// value is what a variable is set to.
func (f *histField) value(o *occurrence) histValue {
	if f.stack {
		s := f.frames(nil, o)
		return histValue{stack: s[:min(len(s), event.HistCallers-1)]}
	}
	if f.text {
		s := f.string(o)
		return histValue{text: s[:min(len(s), event.MaxHistText-1)]}
	}
	return histValue{num: f.number(o)}
}

// eventField is a field of an event.
type eventField struct {
	name   string
	typ    string // as a format file has it
	size   int
	signed bool
	text   bool
	array  bool
	stack  bool
}

// fieldsOf gives the fields that a probe's arguments are.
func fieldsOf(prog *fetch.Program) []eventField {
	fs := make([]eventField, 0, len(prog.Args))
	for i := range prog.Args {
		a := &prog.Args[i]
		f := eventField{name: a.Name, array: a.Count > 0, signed: a.Type.Kind == event.Signed, size: max(a.Size, 1)}
		f.text = a.Type.Kind == event.SymStr || a.Store != fetch.StoreValue
		f.typ, _ = fieldType(&event.TypeSpec{Kind: a.Type.Kind, Size: f.size})
		if f.text {
			f.typ, f.size = "__data_loc char[]", event.MaxHistText
		}
		fs = append(fs, f)
	}
	return fs
}
