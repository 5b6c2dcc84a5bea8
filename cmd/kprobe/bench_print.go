package main

import (
	"encoding/json"
	"fmt"
	"io"
)

func newPrinter(format string, w io.Writer) printer {
	if format == "json" {
		return &jsonPrinter{enc: json.NewEncoder(w)}
	}
	return &textPrinter{w: w}
}

// jsonPrinter writes an object a line, as soon as it is known.
type jsonPrinter struct {
	enc *json.Encoder
	err error
}

func (p *jsonPrinter) put(v any) {
	if p.err == nil {
		p.err = p.enc.Encode(v)
	}
}

func (p *jsonPrinter) machine(m machine) {
	p.put(struct {
		Machine machine `json:"machine"`
	}{m})
}

func (p *jsonPrinter) cell(c cell) { p.put(c) }

func (p *jsonPrinter) figure(f figure) { p.put(f) }

func (p *jsonPrinter) end(_ []cell, _ []figure, rs []ratio) error {
	for _, r := range rs {
		p.put(r)
	}
	return p.err
}

func (p *textPrinter) end(cells []cell, fs []figure, rs []ratio) error {
	m := p.m
	fmt.Fprintf(p.w, "%s, %d CPUs, Linux %s\n", m.CPU, m.CPUs, m.Kernel)
	fmt.Fprintf(p.w, "workload in %s, %s; medians of %d rounds of %d calls (%d where hits trap)\n",
		m.Workload, map[bool]string{true: "threads with rseq", false: "threads without rseq"}[m.Rseq], m.Rounds, m.Calls, m.Slow)
	p.classTable(cells)
	p.paperTable(cells)
	p.threadTable(cells)
	p.ratioTable(rs)
	p.figureTable(fs)
	_, err := fmt.Fprintln(p.w)
	for i, n := range p.notes {
		_, err = fmt.Fprintf(p.w, "[%d] %s\n", i+1, n)
	}
	return err
}
