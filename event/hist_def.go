package event

import (
	"fmt"
	"strings"
)

// Limits of a histogram (kernel/trace/tracing_map.h, trace_events_hist.c, trace_synth.h, Linux 6.18).
const (
	MaxHistKeys     = 3
	MaxHistVals     = 3 // beside hitcount
	MaxHistSorts    = 2
	MaxHistVars     = 16
	MaxHistActions  = 8
	MaxHistOperands = 3  // operators of an expression
	HistCallers     = 16 // of a stack that is a key
	MaxSynthFields  = 64
	MaxHistText     = 256 // bytes of a string that a variable keeps, its NUL included
	minHistSize     = 1 << 7
	maxHistSize     = 1 << 17
	defaultHist     = 1 << 11
	histLocation    = "hist"
	histSizeWhole   = "a power of two from 128 to 131072 is taken, the next larger one"
)

// Names of fields that are in all events.
const (
	HistHitcount  = "hitcount"
	HistTimestamp = "common_timestamp"
	commonStack   = "common_stacktrace"
	onlyClock     = "global"
)

// Hist is a histogram, in the language of the kernel's hist triggers (Documentation/trace/histogram.rst, Linux 6.18).
type Hist struct {
	Text       string // as it was written, from "hist:" on
	Name       string // what events share a histogram by (name=); "": nothing
	Keys       []HistField
	Vals       []HistField // beside hitcount
	Vars       []HistVar
	Sort       []HistSort
	Actions    []HistAction
	Size       int    // most entries
	NoHitcount bool   // hitcount is not shown
	Paused     bool   // hits are not counted
	Continue   bool   // of ParseHistCommand: the one that is there counts again
	Clear      bool   // of ParseHistCommand: the one that is there is emptied
	Remove     bool   // of ParseTriggerCommand: the one that is there is taken away
	Timestamps bool   // it takes common_timestamp
	Usecs      bool   // in microseconds
	Filter     string // behind "if"; "": none
	command    bool   // see ParseHistCommand
}

// HistVar is a variable, which each entry has: what its last hit has set.
type HistVar struct {
	Name string
	Text string    // what it is set to, as written
	Is   HistField // what it is set to
}

// HistSort is what entries are sorted by.
type HistSort struct {
	Name       string // hitcount, or of a key or a value
	Descending bool
}

// Plain says whether the histogram has fields only: no variable and none of another event's, no expression and no action.
func (h *Hist) Plain() bool {
	for _, f := range append(h.Keys[:len(h.Keys):len(h.Keys)], h.Vals...) {
		if f.Expr != nil || f.Name == HistHitcount {
			return false
		}
	}
	return len(h.Vars) == 0 && len(h.Actions) == 0 && !h.Paused
}

// HistField is a field with what is made of it, or an expression.
type HistField struct {
	Name    string // of an expression as it is shown
	Mod     HistMod
	Buckets uint64    // HistBuckets: the size of one
	Expr    *HistExpr // nil: a field
}

// HistMod says how a field is taken and shown.
type HistMod uint8

// Modifiers.
const (
	HistPlain      HistMod = iota
	HistHex                // .hex
	HistSym                // .sym
	HistSymOffset          // .sym-offset
	HistExecname           // .execname, of common_pid
	HistLog2               // .log2
	HistBuckets            // .buckets=N
	HistUsecs              // .usecs, of common_timestamp
	HistPercent            // .percent, of a value: its part of all
	HistGraph              // .graph, of a value: a bar
	HistStack              // the callers: common_stacktrace, and as the kernel had it before, stacktrace
	HistStacktrace         // .stacktrace, of a synthetic event's field that is a stack
)

var histMods = [...]string{
	HistHex: "hex", HistSym: "sym", HistSymOffset: "sym-offset", HistExecname: "execname", HistLog2: "log2", HistUsecs: "usecs",
	HistPercent: "percent", HistGraph: "graph", HistBuckets: "buckets", HistStacktrace: "stacktrace",
}

// String is what stands behind the dot; "" if there is none.
func (m HistMod) String() string {
	if int(m) < len(histMods) {
		return histMods[m]
	}
	return ""
}

// IsHistStack says whether a name is that of the callers.
func IsHistStack(name string) bool { return name == commonStack || name == "stacktrace" }

// HistOp is an operator of an expression.
type HistOp uint8

// The operators. HistAtom is none: a field, a number or a variable.
const (
	HistAtom HistOp = iota
	HistAdd
	HistSub
	HistMul
	HistDiv
	HistNeg
)

var histSigns = [...]byte{HistAdd: '+', HistSub: '-', HistMul: '*', HistDiv: '/'}

// Sign is the operator's character.
func (o HistOp) Sign() byte { return histSigns[o] }

// HistExpr is an expression. All of an operator's left side is computed before it: a-b-c is (a-b)-c; * and / come before + and -.
// Parentheses follow a minus that begins the expression, and nothing else.
type HistExpr struct {
	Op   HistOp
	X, Y *HistExpr // operands; HistNeg has X
	Text string    // as written
}

// HistHandler says when an action is done.
type HistHandler uint8

// The handlers.
const (
	HistOnMatch  HistHandler = iota // onmatch(SYSTEM.EVENT): at each hit whose variables are there
	HistOnMax                       // onmax($VAR): when the variable is larger than it has been in the entry
	HistOnChange                    // onchange($VAR): when the variable is not what it was
)

var histHandlers = [...]string{HistOnMatch: "onmatch", HistOnMax: "onmax", HistOnChange: "onchange"}

// HistAction is something that is done at a hit.
type HistAction struct {
	Handler HistHandler
	System  string // HistOnMatch
	Event   string // HistOnMatch
	Var     string // the others: the variable, with its $
	Name    string // as written: save, trace, or the synthetic event
	Save    bool   // params are kept in the entry
	// Snapshot: the buffer is kept as a snapshot (ParseHistCommand takes that).
	Snapshot bool
	Synth    string // the synthetic event that is traced; "": Save or Snapshot
	Params   []string
	// Traced is the synthetic event, where who has parsed both says so: the code at the hit can count it then. nil: it makes records.
	Traced *Synthetic
}

// On is when the action is done, as the kernel prints it: HANDLER(OF).
func (a *HistAction) On() string {
	if a.Handler == HistOnMatch {
		return "onmatch(" + a.System + "." + a.Event + ")"
	}
	return histHandlers[a.Handler] + "(" + a.Var + ")"
}

// String is the action as the kernel prints it.
func (a *HistAction) String() string {
	params := strings.Join(a.Params, ",")
	if a.Synth != "" && a.Name != a.Synth {
		params = strings.TrimSuffix(a.Synth+","+params, ",")
	}
	return fmt.Sprintf("%s.%s(%s)", a.On(), a.Name, params)
}

// Synthetic is a synthetic event: one that an action of a histogram traces (Documentation/trace/histogram.rst, Linux 6.18).
type Synthetic struct {
	Text   string // as it was written
	Name   string
	Fields []SyntheticField
	Hist   *Hist // what the events are counted in; nil: nothing. No part of Text.
}

// SyntheticField is a field of a synthetic event.
type SyntheticField struct {
	Name   string
	Type   string // as a format file has it
	Size   int    // bytes; of a string the most that it holds; of a stack that of the word that leads to it
	Signed bool
	Text   bool // a string
	Stack  bool // callers
}
