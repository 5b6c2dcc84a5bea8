// Package spanset has sets of functions whose calls are worth a span, as kprobe spans --set takes them, and reads such sets.
//
// A set is a text file. docs/kprobe-spans.md (The file of a set) describes it for users:
//
//	# net, version 2: connections and names of Go's package net, Go 1.23 to 1.26.
//	format 1
//	net.(*Resolver).lookupIPAddr dns.question.name=host --kind client
//
// Reading a line asks no target: what the program has not is left out by who adds the probes.
package spanset
