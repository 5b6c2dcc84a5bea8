// Command kprobevet reports operations in handlers of probes that an atomic handler must
// not do (docs/HANDLERS.md). It is a tool for go vet, and runs alone too:
//
//	go install kprobes.dev/kprobes/vet/cmd/kprobevet@latest
//	go vet -vettool=$(which kprobevet) ./...
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"kprobes.dev/kprobes/vet/kprobevet"
)

func main() { singlechecker.Main(kprobevet.Analyzer) }
