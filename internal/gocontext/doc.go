// Package gocontext finds how the contexts of a Go program carry the spans of OpenTelemetry for Go (go.opentelemetry.io/otel/trace): which types
// contexts and spans have, and where their parts are. All of it is read from the program's file: its symbol table has the tables of the
// interfaces context.Context and trace.Span, one for each type that the program makes one of, and its debug information has the types.
// No version of Go or OpenTelemetry is assumed.
//
// A context is gone through to its parent if its type is a struct with one field of the type context.Context, its own or in a struct that it embeds. So are
// all those of the standard library, but for one of package net, and those of other packages that embed a context, whatever their method Value
// does with other keys. A type with several such fields, or none, ends the way: it is not known then what its Value gives.
package gocontext
