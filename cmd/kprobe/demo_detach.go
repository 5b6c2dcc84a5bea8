package main

import (
	"bytes"
	"fmt"
	"time"

	"kprobes.dev/kprobes/internal/demoapp"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/process"
)

// afterwards is how long the workload is watched without probes.
const afterwards = 200 * time.Millisecond

// detach takes everything out and shows that the workload is as it was.
func (d *demo) detach() error {
	d.step("Everything is taken out again, and the server goes on.")
	before, err := d.app.Resume(d.ctx)
	if err != nil {
		return err
	}
	if err := d.leave(); err != nil {
		return err
	}
	code, err := restored(d.app.PID())
	if err != nil {
		return err
	}
	select {
	case <-d.ctx.Done():
		return d.ctx.Err()
	case <-time.After(afterwards):
	}
	now, err := d.app.Pause(d.ctx)
	if err != nil {
		return err
	}
	if err := unharmed(before, now); err != nil {
		return err
	}
	_, err = fmt.Fprintf(d.out, "   %d bytes of code are those of the file, no mapping of ours is left;\n"+
		"   %d requests were answered since, %d in all, none of them wrong\n", code, now.Handle-before.Handle, now.Handle)
	return err
}

func unharmed(before, now demoapp.Counts) error {
	switch {
	case now.Wrong != 0:
		return fmt.Errorf("demo workload gave %d wrong answers", now.Wrong)
	case now.Handle == before.Handle:
		return fmt.Errorf("demo workload has answered no request since the probes were taken out")
	}
	return nil
}

// restored looks at a process anew: its code must be that of its file, and nothing of
// ours may be in it. It gives the number of bytes compared.
func restored(pid int) (int, error) {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	l, err := process.FindLeftover(p)
	if err != nil {
		return 0, err
	}
	if l != nil {
		return 0, fmt.Errorf("process %d still holds %d sites of ours", pid, len(l.Sites))
	}
	t, err := process.Attach(p, nil)
	if err != nil {
		return 0, err
	}
	m := t.Space().Main()
	total := 0
	for _, r := range m.Image.TextRanges() {
		if err := sameCode(t, m, r); err != nil {
			return 0, err
		}
		total += int(r.End - r.Start)
	}
	return total, nil
}

// sameCode compares a range of a module's code with the module's file.
func sameCode(t *process.Target, m *symbol.Module, r interval.Range) error {
	file, live := make([]byte, r.End-r.Start), make([]byte, r.End-r.Start)
	if err := m.Image.ReadAt(r.Start, file); err != nil {
		return err
	}
	if err := t.Read(m.Runtime(r.Start), live); err != nil {
		return err
	}
	if !bytes.Equal(file, live) {
		return fmt.Errorf("process %d: the code at 0x%x is not that of the file", t.Proc().PID(), m.Runtime(r.Start)+uint64(mismatch(file, live)))
	}
	return nil
}

// mismatch is where two slices of one length differ first.
func mismatch(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
