// Package event is the language of the kernel's kprobe_events: it reads definitions of
// probes, prints them as a listing does, and says what is wrong with a bad one and in
// which column.
//
//	p[:[GRP/][EVENT]] PLACE [ARG...]
//	r[MAXACTIVE][:[GRP/][EVENT]] PLACE [ARG...]
//	w[:[GRP/][EVENT]] [w|rw|x]@PLACE[:LEN] [ARG...]
//	-:[GRP/][EVENT] [PLACE [ARG...]]
//
// PLACE is described at Place, ARG is [NAME=]EXPRESSION[:TYPE] with the expressions of
// ExprKind and the types of TypeKind. The package knows no target: whether a place, a
// register or a symbol exists is found out by those who look it up, and Def.Refuse makes
// their error look like the parser's.
//
// The language follows Linux 6.18. It differs where a program is not the kernel: a symbol
// may be any name of C, C++, Rust or Go, in quotes if it must; @+OFFSET, per-CPU
// variables and the kernel's %pd are refused; gostring is ours. Watchpoints are those of the kernel's wprobes, and
// x is ours.
package event
