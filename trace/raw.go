package trace

import (
	"bytes"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
)

// PageSize is the bytes of a page of CPURawPipe.
const PageSize = ringpage.PageSize

// CPURawPipe is CPUPipe in binary form: pages of 4096 bytes of the kernel's ring buffer, as per_cpu/cpuN/trace_pipe_raw has them. Records are
// laid out as the files format say; text that was written by Mark, synthetic events and stacks are records of the kernel's print event.
// A page says how many records were lost before it.
func (in *Instance) CPURawPipe(cpu int) *Pipe {
	p := in.pipe(cpu)
	p.pages = ringpage.NewPacker(in.names, in.number)
	return p
}

// CPURawSnapshot is CPURawPipe for the records of the snapshot, and ends where those do, as per_cpu/cpuN/snapshot_raw is read.
func (in *Instance) CPURawSnapshot(cpu int) *Pipe {
	in.drain() // triggers may take one
	p := in.CPURawPipe(cpu)
	p.snap = true
	return p
}

// number is the number of an event of a hit; 0: it has been deleted.
func (r *registry) number(e *hit.Event) uint16 {
	if e := r.byHit(e); e != nil {
		return uint16(e.id)
	}
	return 0
}

func (r *registry) byHit(e *hit.Event) *entry {
	r.pollMu.Lock()
	defer r.pollMu.Unlock()
	if a := r.armings[e.Def]; a != nil {
		return a.probe.entry
	}
	return nil
}

// Page gives the next page of a pipe in binary form, without waiting. EAGAIN: there is none; EINVAL: the pipe was read to the middle of a
// page, and nothing is taken; ENODEV: the instance has been closed.
func (p *Pipe) Page() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.text) == 0 && p.take(PageSize) != nil {
		if p.in.life.Err() != nil {
			return nil, unix.ENODEV
		}
		return nil, unix.EAGAIN
	}
	if len(p.text)%PageSize != 0 {
		return nil, unix.EINVAL
	}
	page := p.text[:PageSize:PageSize]
	p.text, p.begun = p.text[PageSize:], true
	return page, nil
}

// pack takes records of the CPU out of the buffer and makes pages of them, about so many bytes. If there are none it gives what is closed when
// some come.
func (p *Pipe) pack(n int) <-chan struct{} {
	for used := 0; used == 0 || n-used >= pageRest; used = p.pages.Used(p.cpu) {
		runs, more := p.buf().Take(p.cpu, n-used)
		if more != nil {
			if used > 0 {
				break
			}
			return more
		}
		for i := range runs {
			if runs[i].lost > 0 {
				p.pages.Lost(p.cpu, runs[i].lost)
			}
			runs[i].each(p.add)
			runs[i].done()
		}
	}
	p.pages.Flush(p.cpu)
	p.text = bytes.Clone(p.pages.Pages(p.cpu))
	return nil
}

// pageRest is how many bytes of a page may be left free at the end of a read: a longer record could need the next page.
const pageRest = 512

// add packs a record. One that is damaged is told of as lost.
func (p *Pipe) add(h *hit.Hit) {
	switch {
	case h.StackOnly:
		_, frames, _ := bytes.Cut(p.print.Stack(nil, h), []byte("\n"))
		p.message(h, append([]byte("<stack trace>\n"), bytes.TrimSuffix(frames, []byte("\n"))...))
	case h.Event.Message && h.Event != markEvent:
		p.message(h, append([]byte(h.Event.Name+": "), h.Rec...))
	default:
		if p.pages.Add(h) != nil {
			p.pages.Lost(p.cpu, 1)
		}
	}
}

func (p *Pipe) message(h *hit.Hit, text []byte) {
	line := *h
	line.Event, line.Rec = markEvent, text
	_ = p.pages.Add(&line) // text is never damaged
}
