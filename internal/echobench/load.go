package echobench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// client asks the server over one connection. It speaks the protocols itself: clients of net/http and gRPC take more CPU time than the server does.
type client interface {
	// ask sends requests with these numbers and hands over their answers.
	ask(ids []uint64, answered func(id uint64, answer string)) error
	io.Closer
}

// httpClient sends a request when the one before it is answered.
type httpClient struct {
	net.Conn
	in *bufio.Reader
}

func dialHTTP(addr string) (client, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &httpClient{c, bufio.NewReader(c)}, nil
}

func (c *httpClient) ask(ids []uint64, answered func(uint64, string)) error {
	for _, id := range ids {
		if _, err := fmt.Fprintf(c, "GET /echo/%016x HTTP/1.1\r\nHost: echo\r\n\r\n", id); err != nil {
			return err
		}
		body, err := c.body()
		if err != nil {
			return fmt.Errorf("answer to %d: %w", id, err)
		}
		answered(id, body)
	}
	return nil
}

// body reads an answer: its headers, whose length it needs, and its text.
func (c *httpClient) body() (string, error) {
	size := -1
	for first := true; ; first = false {
		line, err := c.in.ReadString('\n')
		switch {
		case err != nil:
			return "", err
		case first && line != "HTTP/1.1 200 OK\r\n":
			return "", fmt.Errorf("status %q", line)
		case line == "\r\n":
			text := make([]byte, size)
			_, err := io.ReadFull(c.in, text)
			return strings.TrimSpace(string(text)), err
		}
		if after, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			if _, err := fmt.Sscan(after, &size); err != nil {
				return "", err
			}
		}
	}
}

// grpcClient sends requests side by side, as streams of one connection.
type grpcClient struct {
	net.Conn
	out     bytes.Buffer
	framer  *http2.Framer
	headers []byte
	next    uint32
}

func dialGRPC(addr string) (client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &grpcClient{Conn: conn, next: 1}
	c.framer = http2.NewFramer(&c.out, bufio.NewReader(conn))
	c.out.WriteString(http2.ClientPreface)
	var fields bytes.Buffer
	e := hpack.NewEncoder(&fields)
	e.SetMaxDynamicTableSize(0) // each request's headers are the same bytes
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", "/echo.Echo/Say"},
		{":authority", "echo"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	c.headers = fields.Bytes()
	settings := http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0} // answers' headers need no state either
	if err := errors.Join(c.framer.WriteSettings(settings), c.flush()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// flush sends all frames that were written, at once.
func (c *grpcClient) flush() error {
	_, err := c.out.WriteTo(c.Conn)
	return err
}

func (c *grpcClient) ask(ids []uint64, answered func(uint64, string)) error {
	asked := map[uint32]uint64{}
	for _, id := range ids {
		message, err := proto.Marshal(wrapperspb.String(fmt.Sprintf("%016x", id)))
		if err != nil {
			return err
		}
		err = errors.Join(
			c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: c.headers, EndHeaders: true}),
			c.framer.WriteData(c.next, true, append([]byte{0, 0, 0, 0, byte(len(message))}, message...)))
		if err != nil {
			return err
		}
		asked[c.next] = id
		c.next += 2
	}
	texts := map[uint32]string{}
	for len(asked) > 0 {
		if c.out.Len() > 0 {
			if err := c.flush(); err != nil {
				return err
			}
		}
		f, err := c.framer.ReadFrame()
		if err != nil {
			return err
		}
		if err := c.frame(f, texts); err != nil {
			return err
		}
		if n := f.Header().StreamID; f.Header().Flags.Has(http2.FlagHeadersEndStream) && n != 0 {
			answered(asked[n], texts[n])
			delete(asked, n)
		}
	}
	return c.flush()
}

// frame takes a frame of the server's. Headers are not read: an answer without a text is seen by who asked for it.
func (c *grpcClient) frame(f http2.Frame, texts map[uint32]string) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.framer.WritePing(true, f.Data)
		}
	case *http2.DataFrame:
		message := new(wrapperspb.StringValue)
		if len(f.Data()) < 5 {
			return fmt.Errorf("a message of %d bytes", len(f.Data()))
		}
		if err := proto.Unmarshal(f.Data()[5:], message); err != nil {
			return err
		}
		texts[f.StreamID] = message.Value
		return c.framer.WriteWindowUpdate(0, f.Length)
	case *http2.RSTStreamFrame:
		return fmt.Errorf("stream %d: %v", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server goes: %v %q", f.ErrCode, f.DebugData())
	}
	return nil
}
