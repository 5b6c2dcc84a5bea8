package qemu

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64/amd64gdb"
)

func TestPacket(t *testing.T) {
	if got := string(appendPacket(nil, "vCont;c")); got != "$vCont;c#a8" {
		t.Errorf("packet %q", got)
	}
	tests := []struct {
		in   string
		want []token
		err  error
	}{
		{"+$OK#9a", []token{{ack: '+'}, {data: "OK"}}, io.EOF},
		{"noise$#00-", []token{{}, {ack: '-'}}, io.EOF},
		{"$a0* 1#0c", []token{{data: "a00001"}}, io.EOF}, // GDB manual, E.1: a run of 0s
		{"$}\x03x#f8", []token{{data: "#x"}}, io.EOF},
		{"$OK#9b", nil, unix.EPROTO},
		{"$OK#zz", nil, unix.EPROTO},
		{"$OK", nil, io.ErrUnexpectedEOF},
		{"$OK#9", nil, io.ErrUnexpectedEOF},
		{"$}#7d", nil, unix.EPROTO},
		{"$* #4a", nil, unix.EPROTO},
		{"$" + strings.Repeat("0", maxPacket+1) + "#00", nil, unix.EPROTO},
	}
	for _, c := range tests {
		r := bufio.NewReader(strings.NewReader(c.in))
		for _, want := range c.want {
			if got, err := readToken(r); err != nil || got != want {
				t.Errorf("%.40q: %+v, %v; want %+v", c.in, got, err, want)
			}
		}
		if got, err := readToken(r); !errors.Is(err, c.err) {
			t.Errorf("%.40q: %+v, %v at the end; want %v", c.in, got, err, c.err)
		}
	}
}

func TestStopThread(t *testing.T) {
	for in, want := range map[string]string{
		"T05thread:p01.02;": "p01.02", "T02thread:01;": "01", "T05watch:ff;thread:0a;": "0a",
		"T05": "", "S05": "", "T05thread:;": "", "T05thread:x1;": "", "T": "", "": "",
		"T05thread:" + strings.Repeat("1", 40) + ";": "",
	} {
		if got := stopThread(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestRegs(t *testing.T) {
	words := make([]byte, 0, 1024)
	for i := range 17 {
		words = append(words, []byte(strings.Repeat("0"+string(hexDigits[i%16]), 8))...)
	}
	words = append(words, "46020000"+"10000000"+"18000000"+strings.Repeat("00", 16)...)
	c, err := amd64gdb.Parse(3, string(words))
	if err != nil || c.Index != 3 || c.RBX != 0x0101010101010101 || c.RIP != 0 || c.R15 != 0x0f0f0f0f0f0f0f0f || c.RFLAGS != 0x246 || c.CS != 0x10 || c.SS != 0x18 || !c.Kernel() || c.CR3 != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	d := c
	d.RAX, d.RFLAGS, d.RIP = 0x1122334455667788, 0x247, 5
	got := strings.Join(d.Changes(&c), " ")
	if want := "P0=8877665544332211 P10=0500000000000000 P11=47020000"; got != want {
		t.Errorf("changes %q, want %q", got, want)
	}
	for _, bad := range []string{"", "E14", "zz", string(words[:len(words)-2])} {
		if _, err := amd64gdb.Parse(0, bad); !errors.Is(err, unix.EPROTO) {
			t.Errorf("registers %.20q: %v, want EPROTO", bad, err)
		}
	}
}
