// Package echobench measures what spans cost a service of Go: a server that answers over net/http and gRPC, under load, without probes, with the
// kernel's uprobes and with ours. It is a module of its own for the sake of gRPC.
//
//	go -C internal/echobench test -bench . -benchtime 20x
package echobench
