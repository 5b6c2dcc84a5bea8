// Package hit has the hits of events, and makes text of them: the lines of ftrace's trace file and JSON, and
// sums of what was traced.
package hit

import (
	"bytes"
	"fmt"
	"path"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Event is what the printing of an event's records needs to know of it.
type Event struct {
	Def         *event.Def // that Core.Add was given
	Group, Name string
	Return      bool
	Addr        uint64 // run-time address of the probe point; of the function, for Return
	Prog        *fetch.Program
	ArgsOff     int // offset of the arguments in a record, in bytes
	// Message: there is no event, and a record is a line of text that somebody has written, without its newline.
	Message bool
}

// Hit is one record.
type Hit struct {
	Event   *Event
	Nanos   uint64 // CLOCK_MONOTONIC
	CPU     int
	TID     int
	GoID    uint64 // of a Go program: the goroutine, 0 on a thread's own stack
	Caller  uint64 // Return: where the function returns to
	Unknown bool   // Return: the function went on in another one, its value is not known here
	Left    bool   // Return: there was none, a panic has left the call; Unknown is true
	Before  bool   // of a watchpoint: the instruction is not known; it ran before the one at IP
	IP      uint64 // of a watchpoint: the instruction that accessed the memory; else 0, and it is Event.Addr
	Comm    string // the thread's name where the record has it; "": Namer is asked
	// Context is what a kernel's line has behind the CPU: irqs-off, need-resched, hardirq
	// or softirq, preempt-depth, migrate-disable, or those of another kernel; 0 are behind
	// them. The zero value is shown as dots: a program has neither interrupts nor preemption to
	// disable.
	Context [8]byte
	NoStack bool // the callers that the record has are not shown
	from    any  // see From
	// StackOnly: of the record the callers alone are shown, in lines of their own.
	StackOnly bool
	Rec       []byte // the whole record; valid while the function that was given the Hit runs
}

// Addr is the instruction of the hit, of a return probe the function.
func (h *Hit) Addr() uint64 {
	if h.IP != 0 {
		return h.IP
	}
	return h.Event.Addr
}

// context is what the hit has of its Context.
func (h *Hit) context() []byte {
	n := bytes.IndexByte(h.Context[:], 0)
	if n < 0 {
		n = len(h.Context)
	}
	return h.Context[:n]
}

// Namer finds the names that lines show.
type Namer interface {
	// Symbol finds the symbol at an address.
	Symbol(addr uint64) (fetch.Sym, bool)
	// Comm gives the name of a thread, without control bytes.
	Comm(tid int) string
}

// Liner is a Namer that knows lines of the source.
type Liner interface {
	// Lines tells where the instruction at an address comes from, the innermost function that was inlined there first.
	Lines(addr uint64) []fetch.Line
}

// Printer writes hits as text. It is not safe for use by several goroutines.
type Printer struct {
	Names Namer
	// NoContext leaves out the task, the CPU, the flags and the time, as the kernel's option nocontext-info does; NoFlags the flags, as
	// noirq-info.
	NoContext, NoFlags bool
	// TGID gives the process of a thread, for a column of its own as with the kernel's option record-tgid; 0: it is not known. Nil: there is no
	// such column.
	TGID func(tid int) int
	// Addresses has lines show an address behind each symbol of a place, as the kernel's option sym-addr does.
	Addresses bool

	values []fetch.Value
	frames []fetch.StackFrame
}

// Text appends a hit as a line of ftrace's trace file, with its newline. A record
// whose arguments are damaged says so in their place.
func (p *Printer) Text(dst []byte, h *Hit) []byte {
	if h.StackOnly {
		return p.Stack(dst, h)
	}
	if h.Event.Message {
		return append(append(p.Head(dst, h, h.Event.Name), h.Rec...), '\n')
	}
	dst = append(p.Head(dst, h, h.Event.Name), '(')
	if h.Event.Return {
		dst = p.place(dst, h.Caller)
		dst = append(dst, " <- "...)
		dst = p.address(p.function(dst, h.Event.Addr), h.Event.Addr)
	} else {
		if h.Before {
			dst = append(dst, "unknown, before "...)
		}
		dst = p.place(dst, h.Addr())
	}
	dst = append(dst, ')')
	vs, err := p.decode(h)
	if err != nil {
		dst = append(dst, " ("...)
		dst = append(append(dst, err.Error()...), ')')
	} else {
		dst = fetch.AppendValues(dst, vs, p.Names.Symbol)
	}
	return p.stack(append(dst, '\n'), h)
}

// stack appends the lines of a hit's stack as ftrace has them: the function that is probed, and those that have called it.
func (p *Printer) stack(dst []byte, h *Hit) []byte {
	if h.NoStack {
		return dst
	}
	fs, end, err := h.Callers(p.frames[:0])
	p.frames = fs
	if err != nil || len(fs) == 0 && end == fetch.StackWhole {
		return dst
	}
	if !h.Event.Return {
		dst = p.frame(dst, fetch.StackFrame{PC: h.Event.Addr, Interrupted: true})
	}
	for _, f := range fs {
		dst = p.frame(dst, f)
	}
	if end != fetch.StackWhole {
		dst = fmt.Appendf(dst, " => (%s)\n", end)
	}
	return dst
}

// Stack appends a hit's stack without the hit, as ftrace has it: a line of its own, and one for each call.
func (p *Printer) Stack(dst []byte, h *Hit) []byte {
	dst = bytes.TrimSuffix(p.Head(dst, h, "<stack trace>"), []byte(": "))
	return p.stack(append(dst, '\n'), h)
}

// frame appends the line of a call, behind those of the functions that were inlined in it.
func (p *Printer) frame(dst []byte, f fetch.StackFrame) []byte {
	lines := p.lines(f)
	for _, l := range lines[:max(len(lines)-1, 0)] {
		dst = append(append(dst, " => "...), clean(l.Func)...)
		dst = append(appendLine(append(dst, " (inlined)"...), l), '\n')
	}
	dst = p.address(fetch.AppendFrame(append(dst, " => "...), f, p.Names.Symbol), f.PC)
	if n := len(lines); n > 0 {
		dst = appendLine(dst, lines[n-1])
	}
	return append(dst, '\n')
}

func (p *Printer) lines(f fetch.StackFrame) []fetch.Line {
	if l, ok := p.Names.(Liner); ok {
		return l.Lines(f.At())
	}
	return nil
}

// appendLine appends ` FILE:LINE`, with the file's base name, if a line is told.
func appendLine(dst []byte, l fetch.Line) []byte {
	if l.Line == 0 {
		return dst
	}
	return fmt.Appendf(dst, " %s:%d", clean(path.Base(l.File)), l.Line)
}

// Callers gives the calls in progress at the hit, the innermost first, behind those of dst, and why no more are recorded. There
// are none if the event records no stack. The error is that of a record that is damaged.
func (h *Hit) Callers(dst []fetch.StackFrame) ([]fetch.StackFrame, fetch.StackEnd, error) {
	if h.Event.Prog == nil || h.Event.Prog.Stack == 0 {
		return dst, fetch.StackWhole, nil
	}
	return h.Event.Prog.Callers(dst, h.Rec, h.Event.ArgsOff)
}

// AppendArgs appends the hit's arguments as a line ends, ` name=value` for each. symbol names
// the addresses of arguments that are shown as symbols; it may be nil. The error is that of a record that is damaged.
func (h *Hit) AppendArgs(dst []byte, symbol fetch.Resolver) ([]byte, error) {
	vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, h.Comm)
	if err != nil {
		return dst, err
	}
	return fetch.AppendValues(dst, vs, symbol), nil
}

// place appends the symbol at an address.
func (p *Printer) place(dst []byte, addr uint64) []byte {
	return p.address(fetch.AppendSym(dst, addr, p.Names.Symbol), addr)
}

// address appends what stands behind a symbol.
func (p *Printer) address(dst []byte, addr uint64) []byte {
	if !p.Addresses {
		return dst
	}
	return fmt.Appendf(dst, " <%016x>", addr)
}

// function appends the name of a function.
func (p *Printer) function(dst []byte, addr uint64) []byte {
	if s, ok := p.Names.Symbol(addr); ok {
		return append(dst, s.Name...)
	}
	return fetch.AppendSym(dst, addr, nil)
}

func (p *Printer) decode(h *Hit) ([]fetch.Value, error) {
	if h.Event.Prog == nil {
		return nil, nil
	}
	var err error
	p.values, err = h.Event.Prog.DecodeInto(p.values[:0], h.Rec, h.Event.ArgsOff, p.comm(h))
	h.Hide(p.values)
	return p.values, err
}

// Hide marks those of a hit's values as unknown that it does not tell.
func (h *Hit) Hide(vs []fetch.Value) {
	switch {
	case h.Left:
		fetch.HideReturn(vs)
	case h.Unknown:
		fetch.HideResults(vs)
	}
}

// JSON appends a hit as one line of JSON: time (seconds, CLOCK_MONOTONIC), event, comm,
// pid (the thread's id, as ftrace calls it), cpu, goid, flags (Context), at, before (where at is unknown), caller, args, stack (the callers), stack_ends (why
// they are not all).
func (p *Printer) JSON(dst []byte, h *Hit) []byte {
	dst = p.headJSON(dst, h)
	dst = append(dst, `,"at":`...)
	if h.Event.Return {
		dst = fetch.AppendJSONString(dst, p.function(nil, h.Event.Addr))
		dst = append(dst, `,"caller":`...)
		dst = fetch.AppendJSONString(dst, fetch.AppendSym(nil, h.Caller, p.Names.Symbol))
	} else {
		at := fetch.AppendSym(nil, h.Addr(), p.Names.Symbol)
		if h.Before {
			dst = append(dst, `"unknown","before":`...)
		}
		dst = fetch.AppendJSONString(dst, at)
	}
	vs, err := p.decode(h)
	if err != nil {
		dst = fetch.AppendJSONString(append(dst, `,"error":`...), []byte(err.Error()))
		return append(dst, "}\n"...)
	}
	dst = append(dst, `,"args":{`...)
	for i := range vs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fetch.AppendJSONString(dst, []byte(vs[i].Arg.Name))
		dst = vs[i].AppendJSON(append(dst, ':'), p.Names.Symbol)
	}
	return append(p.stackJSON(append(dst, '}'), h), "}\n"...)
}

// StackJSON appends a hit's stack without the hit, as one line of JSON: what JSON has, without at and all that describes the hit.
func (p *Printer) StackJSON(dst []byte, h *Hit) []byte {
	return append(p.stackJSON(p.headJSON(dst, h), h), "}\n"...)
}

// headJSON appends what an object begins with, without its closing brace.
func (p *Printer) headJSON(dst []byte, h *Hit) []byte {
	dst = fmt.Appendf(dst, `{"time":%d.%09d,"event":`, h.Nanos/1e9, h.Nanos%1e9)
	dst = fetch.AppendJSONString(dst, []byte(h.Event.Group+"/"+h.Event.Name))
	dst = fetch.AppendJSONString(append(dst, `,"comm":`...), []byte(p.comm(h)))
	dst = fmt.Appendf(dst, `,"pid":%d,"cpu":%d`, h.TID, h.CPU)
	if h.GoID != 0 {
		dst = fmt.Appendf(dst, `,"goid":%d`, h.GoID)
	}
	if c := h.context(); len(c) > 0 {
		dst = fetch.AppendJSONString(append(dst, `,"flags":`...), c)
	}
	return dst
}

// frameJSON appends the object of a call: at, file and line, inlined.
func (p *Printer) frameJSON(dst []byte, f fetch.StackFrame) []byte {
	dst = fetch.AppendJSONString(append(dst, `{"at":`...), fetch.AppendFrame(nil, f, p.Names.Symbol))
	lines := p.lines(f)
	n := len(lines) - 1
	if n >= 0 {
		dst = appendLineJSON(dst, lines[n])
	}
	for i := range max(n, 0) {
		if i == 0 {
			dst = append(dst, `,"inlined":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = fetch.AppendJSONString(append(dst, `{"func":`...), []byte(lines[i].Func))
		dst = append(appendLineJSON(dst, lines[i]), '}')
	}
	if n > 0 {
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

func appendLineJSON(dst []byte, l fetch.Line) []byte {
	if l.Line == 0 {
		return dst
	}
	dst = fetch.AppendJSONString(append(dst, `,"file":`...), []byte(l.File))
	return fmt.Appendf(dst, `,"line":%d`, l.Line)
}

func (p *Printer) stackJSON(dst []byte, h *Hit) []byte {
	if h.NoStack || h.Event.Prog == nil || h.Event.Prog.Stack == 0 {
		return dst
	}
	fs, end, err := h.Callers(p.frames[:0])
	p.frames = fs
	if err != nil {
		return fetch.AppendJSONString(append(dst, `,"stack_ends":`...), []byte(err.Error()))
	}
	dst = append(dst, `,"stack":[`...)
	for i, f := range fs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = p.frameJSON(dst, f)
	}
	dst = append(dst, ']')
	if end != fetch.StackWhole {
		dst = fetch.AppendJSONString(append(dst, `,"stack_ends":`...), []byte(end.String()))
	}
	return dst
}
