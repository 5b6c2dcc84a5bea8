package native

import (
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/fetch"
)

// HistBytes is the size of the memory of a histogram that generated code makes.
func HistBytes(h *fetch.Hist, cpus int) int { return amd64.HistBytes(h, cpus) }

// HistCode is what generates the code that counts (arch.HistTable).
func HistCode() any { return amd64.HistCode() }

// ReadHist reads one out of a copy of its memory, which may hold anything: also the hits that found no variable.
func ReadHist(mem []byte, h *fetch.Hist, cpus int) (entries []fetch.HistEntry, dropped, unset uint64) {
	return amd64.ReadHist(mem, h, cpus)
}
