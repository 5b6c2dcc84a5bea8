package trace

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
)

// Pipe is a reader of trace_pipe. What it has read is taken out of the buffer: with several readers each record goes to one. It may
// be used by several goroutines.
type Pipe struct {
	in   *Instance
	cpu  int  // whose records; AllCPUs
	snap bool // they are those of the snapshot

	mu    sync.Mutex
	print *printer
	pages *ringpage.Packer // nil: records are given as text
	text  []byte           // of records that have been taken, and not read
	begun bool             // something was read
}

// Pipe makes a reader, which needs no end.
func (in *Instance) Pipe() *Pipe { return in.pipe(AllCPUs) }

func (in *Instance) pipe(cpu int) *Pipe {
	return &Pipe{in: in, cpu: cpu, print: in.printer()}
}

// Read gives up to n bytes of text, at least one. It waits until there is any, or gives EAGAIN if it is not to wait. Where tracing is
// off the text of a reader that has read any ends: io.EOF, as when the instance has been closed; that of CPURawPipe waits. The other error
// is ctx's.
func (p *Pipe) Read(ctx context.Context, n int, wait bool) ([]byte, error) {
	for {
		out, more, err := p.next(n)
		switch {
		case out != nil || err != nil:
			return out, err
		case !wait:
			return nil, unix.EAGAIN
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.in.life.Done():
		case <-more:
		}
	}
}

// none has no records.
var none = newBuffer(0)

// buf is the buffer that is read.
func (p *Pipe) buf() *buffer {
	if !p.snap {
		return p.in.buf
	}
	if snap := p.in.snapshot(); snap != nil {
		return snap
	}
	return none
}

// next gives text, or the end, or what is closed when there may be more.
func (p *Pipe) next(n int) ([]byte, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.text) == 0 {
		if more := p.take(n); more != nil {
			if p.ended() {
				return nil, nil, io.EOF
			}
			return nil, more, nil
		}
	}
	n = min(n, len(p.text))
	out := p.text[:n:n]
	p.text, p.begun = p.text[n:], true
	return out, nil, nil
}

// ended says whether no more is to be waited for. Where tracing is off text ends (tracing_wait_pipe), and pages do not (tracing_buffers_read,
// Linux 6.18).
func (p *Pipe) ended() bool {
	return p.in.life.Err() != nil || p.snap || p.pages == nil && p.begun && !p.in.on.Load()
}

// Ready says whether there is enough to read for who waits for that: anything or, of a CPU's records, so much as SetBufferPercent says. If
// there is not, more is closed when that may have changed.
func (p *Pipe) Ready() (ready bool, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.text) > 0 || p.ended() {
		return true, nil
	}
	more = p.buf().Waiting(p.cpu, p.in.BufferPercent())
	return more == nil, more
}

// take takes records out of the buffer, until their text has n bytes or there are no more: what a reader does not ask for is for others.
// If there are none it gives what is closed when some come.
func (p *Pipe) take(n int) <-chan struct{} {
	if p.pages != nil {
		return p.pack(n)
	}
	p.text = nil
	for len(p.text) < n {
		runs, more := p.buf().Take(p.cpu, max((n-len(p.text))/lineGrows, 1))
		if more != nil {
			if len(p.text) > 0 {
				break
			}
			return more
		}
		for i := range runs {
			if lost := runs[i].lost; lost > 0 {
				p.text = append(p.text, hit.LostLine(hit.Loss{CPU: runs[i].cpu, Hits: lost})...)
			}
			runs[i].each(func(h *hit.Hit) { p.text = p.print.Text(p.text, h) })
			runs[i].done()
		}
	}
	return nil
}

// lineGrows is a guess: how many times as long a line is as what the buffer counts its hit for.
const lineGrows = 4

// pipeText is how much text WritePipe writes at once, in bytes.
const pipeText = 64 << 10

// WritePipe writes what trace_pipe gives: records, as they come, which are taken out of the
// buffer; with several readers each record goes to one. flush, if not nil, is called where
// the next write may have to wait. It ends with ctx or the instance, or when w fails.
func (in *Instance) WritePipe(ctx context.Context, w io.Writer, flush func() error) error {
	return in.Pipe().WriteTo(ctx, w, flush)
}

// WriteTo is WritePipe for what the pipe reads. Nobody else may read it meanwhile.
func (p *Pipe) WriteTo(ctx context.Context, w io.Writer, flush func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.in.life, cancel)()
	for ctx.Err() == nil {
		if len(p.text) == 0 {
			if more := p.take(pipeText); more != nil {
				select {
				case <-ctx.Done():
				case <-more:
				}
				continue
			}
		}
		text := p.text
		p.text = nil
		if _, err := w.Write(text); err != nil {
			return err
		}
		if flush != nil {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}
