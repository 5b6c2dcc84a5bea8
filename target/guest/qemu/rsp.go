package qemu

import (
	"bufio"
	"encoding/hex"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// The gdb remote serial protocol (GDB manual, appendix E): $data#checksum, each answered by
// + or -. QEMU takes the $ of the next packet for a + as well.

// maxPacket bounds what QEMU may send in one packet, in bytes; it says PacketSize=1000 (hex).
const maxPacket = 64 << 10

const hexDigits = "0123456789abcdef"

// appendPacket appends data as a packet. Data is ASCII without $, #, } and *.
func appendPacket(b []byte, data string) []byte {
	b = append(b, '$')
	b = append(b, data...)
	return append(b, '#', hexDigits[checksum(data)>>4], hexDigits[checksum(data)&15])
}

func checksum(data string) byte {
	var sum byte
	for i := range len(data) {
		sum += data[i]
	}
	return sum
}

// token is what the stub sends: a packet's data, or an acknowledgement.
type token struct {
	data string
	ack  byte // '+' or '-', 0 for a packet
}

// readToken reads the next packet or acknowledgement; bytes between them are passed over.
func readToken(r *bufio.Reader) (token, error) {
	for {
		c, err := r.ReadByte()
		if err != nil {
			return token{}, err
		}
		switch c {
		case '+', '-':
			return token{ack: c}, nil
		case '$':
			data, err := readPacket(r)
			return token{data: data}, err
		}
	}
}

// readPacket reads a packet's data behind its $, and checks its sum.
func readPacket(r *bufio.Reader) (string, error) {
	var raw strings.Builder
	for {
		c, err := r.ReadByte()
		if err != nil {
			return "", noEOF(err)
		}
		if c == '#' {
			break
		}
		if raw.Len() >= maxPacket {
			return "", errno.Errorf(unix.EPROTO, "gdb stub: a packet of more than %d bytes", maxPacket)
		}
		raw.WriteByte(c)
	}
	var sum [2]byte
	if _, err := io.ReadFull(r, sum[:]); err != nil {
		return "", noEOF(err)
	}
	want, err := hex.DecodeString(string(sum[:]))
	if err != nil || want[0] != checksum(raw.String()) {
		return "", errno.Errorf(unix.EPROTO, "gdb stub: packet %.80q has checksum %q, want %02x", raw.String(), sum[:], checksum(raw.String()))
	}
	return expand(raw.String())
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// expand undoes escapes (}c is c^0x20) and run lengths (x*n repeats x n-29 times).
func expand(raw string) (string, error) {
	if !strings.ContainsAny(raw, "}*") {
		return raw, nil
	}
	var out []byte
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c != '}' && c != '*':
			out = append(out, c)
		case i+1 == len(raw):
			return "", errno.Errorf(unix.EPROTO, "gdb stub: packet %.80q ends in the middle of an escape", raw)
		case c == '}':
			i++
			out = append(out, raw[i]^0x20)
		default:
			i++
			n := int(raw[i]) - 29
			if len(out) == 0 || n < 0 || len(out)+n > maxPacket {
				return "", errno.Errorf(unix.EPROTO, "gdb stub: packet %.80q repeats %d times what is not there", raw, n)
			}
			last := out[len(out)-1]
			for range n {
				out = append(out, last)
			}
		}
	}
	return string(out), nil
}

// isStop says whether a packet tells that the vCPUs have stopped, or that QEMU ends.
func isStop(data string) bool {
	return data != "" && strings.ContainsRune("TSWX", rune(data[0]))
}

// isTrap says whether a stop reply is that of a breakpoint or a single step: of SIGTRAP.
// Others are somebody else's, the machine's owner's.
func isTrap(data string) bool { return strings.HasPrefix(data, "T05") }

// stopThread is the thread that a stop reply T names, "" for none.
func stopThread(data string) string {
	if len(data) < 3 || data[0] != 'T' {
		return ""
	}
	for field := range strings.SplitSeq(data[3:], ";") {
		if id, ok := strings.CutPrefix(field, "thread:"); ok && isThread(id) {
			return id
		}
	}
	return ""
}

// isThread says whether s is a thread's id: hex, or pHEX.HEX.
func isThread(s string) bool {
	return s != "" && len(s) <= 32 && strings.Trim(s, "p."+hexDigits) == ""
}
