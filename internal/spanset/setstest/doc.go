// Package setstest has tests of the sets of kprobe spans whose functions are those of modules, and of the spans that programs make by OpenTelemetry: real programs that import them. It is a module of its own, so that nobody
// else needs those.
package setstest
