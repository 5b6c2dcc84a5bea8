package otlp

import (
	"bufio"
	"context"
	"io"
)

// fileSender writes batches to a file, a line of JSON each.
type fileSender struct {
	to  io.WriteCloser
	out *bufio.Writer
}

// NewFile makes a sender that writes each batch as a line of OTLP's JSON. It closes the file.
func NewFile(to io.WriteCloser) Sender { return &fileSender{to, bufio.NewWriter(to)} }

// Send implements Sender. A reader of the file sees whole lines.
func (s *fileSender) Send(_ context.Context, b *Batch) (Answer, error) {
	line, err := b.JSON()
	if err == nil {
		_, err = s.out.Write(line)
	}
	if err == nil {
		err = s.out.Flush()
	}
	return Answer{}, err
}

// Close implements Sender.
func (s *fileSender) Close() error { return s.to.Close() }
