package event

import "syscall"

// Code is one entry of the table of errors in a definition.
type Code uint8

// The errors of Linux 6.18, in the order of its table (trace_probe.h, ERRORS); behind
// them those that Linux 7 adds, and at the end our own.
const (
	FileNotFound Code = iota
	NoRegularFile
	BadRefcnt
	RefcntOpenBrace
	BadRefcntSuffix
	BadUprobeOffs
	BadMaxactType
	BadMaxact
	MaxactTooBig
	BadProbeAddr
	NonUniqSymbol
	BadRetprobe
	NoTracepoint
	BadTPName
	BadAddrSuffix
	NoGroupName
	GroupTooLong
	BadGroupName
	NoEventName
	EventTooLong
	BadEventName
	EventExist
	RetvalOnProbe
	NoRetval
	BadStackNum
	BadArgNum
	BadVar
	BadRegName
	BadMemAddr
	BadImm
	ImmstrNoClose
	FileOnKprobe
	BadFileOffs
	SymOnUprobe
	TooManyOps
	DerefNeedBrace
	BadDerefOffs
	DerefOpenBrace
	CommCantDeref
	BadFetchArg
	ArrayNoClose
	BadArraySuffix
	BadArrayNum
	ArrayTooBig
	BadType
	BadString
	BadSymstring
	BadBitfield
	ArgNameTooLong
	NoArgName
	BadArgName
	UsedArgName
	ArgTooLong
	NoArgBody
	BadInsnBndry
	FailRegProbe
	DiffProbeType
	DiffArgType
	SameProbe
	NoEventInfo
	BadAttachEvent
	BadAttachArg
	NoEPFilter
	NosupBTFArg
	NoBTFArg
	NoBTFEntry
	BadVarArgs
	NofentryArgs
	DoubleArgs
	Args2Long
	ArgIdx2Big
	NoPtrStrct
	NosupDatArg
	BadHyphen
	NoBTFField
	BadBTFTid
	BadType4Str
	NeedStringType
	TooManyArgs
	TooManyEargs

	NoEventField
	EventTooBig
	TypecastNotEvent
	TypecastReqField
	TooManyNested
	TypecastSymOffset
	TypecastNotAligned
	TypecastBadArrow
	NosupPercpu

	LineTooLong
	BadByte
	BadCommand
	NoPlace
	NoLineTable
	NoProgram
	TooManyLines
	ReadFailed

	numCodes
)

// entry is one row of the table. An errno of 0 means EINVAL.
type entry struct {
	name, text string
	errno      syscall.Errno
}

var table = [numCodes]entry{
	FileNotFound:    {"FILE_NOT_FOUND", "Failed to find the given file", syscall.ENOENT},
	NoRegularFile:   {"NO_REGULAR_FILE", "Not a regular file", 0},
	BadRefcnt:       {"BAD_REFCNT", "Invalid reference counter offset", 0},
	RefcntOpenBrace: {"REFCNT_OPEN_BRACE", "Reference counter brace is not closed", 0},
	BadRefcntSuffix: {"BAD_REFCNT_SUFFIX", "Reference counter has wrong suffix", 0},
	BadUprobeOffs:   {"BAD_UPROBE_OFFS", "Invalid uprobe offset", 0},
	BadMaxactType:   {"BAD_MAXACT_TYPE", "Maxactive is only for function exit", 0},
	BadMaxact:       {"BAD_MAXACT", "Invalid maxactive number", 0},
	MaxactTooBig:    {"MAXACT_TOO_BIG", "Maxactive is too big", 0},
	BadProbeAddr:    {"BAD_PROBE_ADDR", "Invalid probed address or symbol", 0},
	NonUniqSymbol:   {"NON_UNIQ_SYMBOL", "The symbol is not unique", 0},
	BadRetprobe:     {"BAD_RETPROBE", "Retprobe address must be an function entry", 0},
	NoTracepoint:    {"NO_TRACEPOINT", "Tracepoint is not found", 0},
	BadTPName:       {"BAD_TP_NAME", "Invalid character in tracepoint name", 0},
	BadAddrSuffix:   {"BAD_ADDR_SUFFIX", "Invalid probed address suffix", 0},
	NoGroupName:     {"NO_GROUP_NAME", "Group name is not specified", 0},
	GroupTooLong:    {"GROUP_TOO_LONG", "Group name is too long", 0},
	BadGroupName:    {"BAD_GROUP_NAME", "Group name must follow the same rules as C identifiers", 0},
	NoEventName:     {"NO_EVENT_NAME", "Event name is not specified", 0},
	EventTooLong:    {"EVENT_TOO_LONG", "Event name is too long", 0},
	BadEventName:    {"BAD_EVENT_NAME", "Event name must follow the same rules as C identifiers", 0},
	EventExist:      {"EVENT_EXIST", "Given group/event name is already used by another event", syscall.EEXIST},
	RetvalOnProbe:   {"RETVAL_ON_PROBE", "$retval is not available on probe", 0},
	NoRetval:        {"NO_RETVAL", "This function returns 'void' type", syscall.ENOENT},
	BadStackNum:     {"BAD_STACK_NUM", "Invalid stack number", 0},
	BadArgNum:       {"BAD_ARG_NUM", "Invalid argument number", 0},
	BadVar:          {"BAD_VAR", "Invalid $-variable specified", 0},
	BadRegName:      {"BAD_REG_NAME", "Invalid register name", 0},
	BadMemAddr:      {"BAD_MEM_ADDR", "Invalid memory address", 0},
	BadImm:          {"BAD_IMM", "Invalid immediate value", 0},
	ImmstrNoClose:   {"IMMSTR_NO_CLOSE", "String is not closed with '\"'", 0},
	FileOnKprobe:    {"FILE_ON_KPROBE", "File offset is not available with kprobe", 0},
	BadFileOffs:     {"BAD_FILE_OFFS", "Invalid file offset value", 0},
	SymOnUprobe:     {"SYM_ON_UPROBE", "Symbol is not available with uprobe", 0},
	TooManyOps:      {"TOO_MANY_OPS", "Dereference is too much nested", 0},
	DerefNeedBrace:  {"DEREF_NEED_BRACE", "Dereference needs a brace", 0},
	BadDerefOffs:    {"BAD_DEREF_OFFS", "Invalid dereference offset", 0},
	DerefOpenBrace:  {"DEREF_OPEN_BRACE", "Dereference brace is not closed", 0},
	CommCantDeref:   {"COMM_CANT_DEREF", "$comm can not be dereferenced", 0},
	BadFetchArg:     {"BAD_FETCH_ARG", "Invalid fetch argument", 0},
	ArrayNoClose:    {"ARRAY_NO_CLOSE", "Array is not closed", 0},
	BadArraySuffix:  {"BAD_ARRAY_SUFFIX", "Array has wrong suffix", 0},
	BadArrayNum:     {"BAD_ARRAY_NUM", "Invalid array size", 0},
	ArrayTooBig:     {"ARRAY_TOO_BIG", "Array number is too big", 0},
	BadType:         {"BAD_TYPE", "Unknown type is specified", 0},
	BadString:       {"BAD_STRING", "String accepts only memory argument", 0},
	BadSymstring:    {"BAD_SYMSTRING", "Symbol String doesn't accept data/userdata", 0},
	BadBitfield:     {"BAD_BITFIELD", "Invalid bitfield", 0},
	ArgNameTooLong:  {"ARG_NAME_TOO_LONG", "Argument name is too long", 0},
	NoArgName:       {"NO_ARG_NAME", "Argument name is not specified", 0},
	BadArgName:      {"BAD_ARG_NAME", "Argument name must follow the same rules as C identifiers", 0},
	UsedArgName:     {"USED_ARG_NAME", "This argument name is already used", 0},
	ArgTooLong:      {"ARG_TOO_LONG", "Argument expression is too long", syscall.E2BIG},
	NoArgBody:       {"NO_ARG_BODY", "No argument expression", 0},
	BadInsnBndry:    {"BAD_INSN_BNDRY", "Probe point is not an instruction boundary", syscall.EILSEQ},
	FailRegProbe:    {"FAIL_REG_PROBE", "Failed to register probe event", 0},
	DiffProbeType:   {"DIFF_PROBE_TYPE", "Probe type is different from existing probe", syscall.EEXIST},
	DiffArgType:     {"DIFF_ARG_TYPE", "Argument type or name is different from existing probe", syscall.EEXIST},
	SameProbe:       {"SAME_PROBE", "There is already the exact same probe event", syscall.EEXIST},
	NoEventInfo:     {"NO_EVENT_INFO", "This requires both group and event name to attach", 0},
	BadAttachEvent:  {"BAD_ATTACH_EVENT", "Attached event does not exist", syscall.ENOENT},
	BadAttachArg:    {"BAD_ATTACH_ARG", "Attached event does not have this field", syscall.ENOENT},
	NoEPFilter:      {"NO_EP_FILTER", "No filter rule after 'if'", 0},
	NosupBTFArg:     {"NOSUP_BTFARG", "BTF is not available or not supported", 0},
	NoBTFArg:        {"NO_BTFARG", "This variable is not found at this probe point", syscall.ENOENT},
	NoBTFEntry:      {"NO_BTF_ENTRY", "No BTF entry for this probe point", syscall.ENOENT},
	BadVarArgs:      {"BAD_VAR_ARGS", "$arg* must be an independent parameter without name etc.", 0},
	NofentryArgs:    {"NOFENTRY_ARGS", "$arg* can be used only on function entry or exit", 0},
	DoubleArgs:      {"DOUBLE_ARGS", "$arg* can be used only once in the parameters", 0},
	Args2Long:       {"ARGS_2LONG", "$arg* failed because the argument list is too long", syscall.E2BIG},
	ArgIdx2Big:      {"ARGIDX_2BIG", "$argN index is too big", 0},
	NoPtrStrct:      {"NO_PTR_STRCT", "This is not a pointer to union/structure.", 0},
	NosupDatArg:     {"NOSUP_DAT_ARG", "Non pointer structure/union argument is not supported.", syscall.EOPNOTSUPP},
	BadHyphen:       {"BAD_HYPHEN", "Failed to parse single hyphen. Forgot '>'?", 0},
	NoBTFField:      {"NO_BTF_FIELD", "This field is not found.", syscall.ENOENT},
	BadBTFTid:       {"BAD_BTF_TID", "Failed to get BTF type info.", 0},
	BadType4Str:     {"BAD_TYPE4STR", "This type does not fit for string.", 0},
	NeedStringType:  {"NEED_STRING_TYPE", "$comm and immediate-string only accepts string type", 0},
	TooManyArgs:     {"TOO_MANY_ARGS", "Too many arguments are specified", syscall.E2BIG},
	TooManyEargs:    {"TOO_MANY_EARGS", "Too many entry arguments specified", syscall.ENOSPC},

	NoEventField:       {"NO_EVENT_FIELD", "This event field is not found.", 0},
	EventTooBig:        {"EVENT_TOO_BIG", "Event too big (too many fields?)", syscall.E2BIG},
	TypecastNotEvent:   {"TYPECAST_NOT_EVENT", "Typecasts are only for eprobe fields", 0},
	TypecastReqField:   {"TYPECAST_REQ_FIELD", "Typecast requires a field access", 0},
	TooManyNested:      {"TOO_MANY_NESTED", "Too many nested typecasts/dereferences", syscall.E2BIG},
	TypecastSymOffset:  {"TYPECAST_SYM_OFFSET", "@SYM+/-OFFSET with typecast needs parentheses", 0},
	TypecastNotAligned: {"TYPECAST_NOT_ALIGNED", "Typecast field option is not byte-aligned", 0},
	TypecastBadArrow:   {"TYPECAST_BAD_ARROW", "Typecast field option does not support -> operator", 0},
	NosupPercpu:        {"NOSUP_PERCPU", "Per-cpu variable access is only for kernel probes", 0},

	LineTooLong:  {"LINE_TOO_LONG", "Line length is too long: Should be less than 4094", 0},
	BadByte:      {"BAD_BYTE", "Control character in the definition", 0},
	BadCommand:   {"BAD_COMMAND", "Definition must start with p, r, f, w or -:", 0},
	NoPlace:      {"NO_PLACE", "Probed address or symbol is not specified", 0},
	NoLineTable:  {"NO_LINE_TABLE", "This place needs line tables", 0},
	NoProgram:    {"NO_PROGRAM", "The target is a kernel, which maps no file: use kprobe_events", syscall.EOPNOTSUPP},
	TooManyLines: {"TOO_MANY_LINES", "Too many definitions", syscall.E2BIG},
	ReadFailed:   {"READ_FAILED", "Definitions can not be read", 0},
}

// String is the name of the code as the kernel's sources write it.
func (c Code) String() string {
	if c >= numCodes {
		return "UNKNOWN"
	}
	return table[c].name
}

// ofTarget are the errors that depend on what a target has or allows.
var ofTarget = [numCodes]bool{
	FileNotFound: true, NoRegularFile: true, BadProbeAddr: true, NonUniqSymbol: true, BadRetprobe: true,
	NoRetval: true, BadMemAddr: true, BadInsnBndry: true, FailRegProbe: true, BadAttachEvent: true,
	BadAttachArg: true, NosupBTFArg: true, NoBTFArg: true, NoBTFEntry: true, NofentryArgs: true,
	NoPtrStrct: true, NosupDatArg: true, NoBTFField: true, BadBTFTid: true, BadType4Str: true,
	TooManyEargs: true, NoEventField: true, EventTooBig: true, NoLineTable: true, NoProgram: true, ReadFailed: true,
}

// Language says whether a definition with this error is wrong in every target: it breaks a rule
// of the language, or another definition beside it has its name.
func (c Code) Language() bool { return c < numCodes && !ofTarget[c] }

// Text is the message of the table.
func (c Code) Text() string {
	if c >= numCodes {
		return ""
	}
	return table[c].text
}

// Errno is the error number that a write of the definition to kprobe_events returns.
func (c Code) Errno() syscall.Errno {
	if c >= numCodes || table[c].errno == 0 {
		return syscall.EINVAL
	}
	return table[c].errno
}
