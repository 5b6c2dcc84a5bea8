package xz

import (
	"bytes"
	"errors"
	"hash/crc32"
	"os/exec"
	"strings"
	"testing"
)

// compressed gives what xz(1) makes of a text.
func compressed(t testing.TB, text string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("xz", append(args, "-c")...)
	cmd.Stdin = strings.NewReader(text)
	z, err := cmd.Output()
	if err != nil {
		t.Fatalf("xz: %v: install xz-utils", err)
	}
	return z
}

var text = strings.Repeat("some text that is to be compressed, ", 1000)

func TestDecompress(t *testing.T) {
	for _, args := range [][]string{{"-6"}, {"-0", "-Ccrc32"}, {"-9e", "-Csha256"}, {"-Cnone", "--block-size=4096"}} {
		b, err := Decompress(compressed(t, text, args...), 1<<30)
		if err != nil || string(b) != text {
			t.Errorf("%v: %d bytes, %v", args, len(b), err)
		}
	}
}

func TestDecompressRefuses(t *testing.T) {
	z := compressed(t, text, "-6")
	if _, err := Decompress(z, 1000); !errors.Is(err, ErrLimit) {
		t.Errorf("more than 1000 bytes: %v", err)
	}
	huge := bytes.Clone(z)
	huge[12+4] = 39 // dictionary of 3 GiB
	fixBlockCRC(huge)
	if _, err := Decompress(huge, 1<<30); !errors.Is(err, ErrLimit) {
		t.Errorf("dictionary of 3 GiB: %v", err)
	}
	for i := range len(z) / 2 {
		if _, err := Decompress(z[:i], 1<<30); err == nil {
			t.Errorf("%d of %d bytes are taken", i, len(z))
		}
	}
	bad := bytes.Clone(z)
	bad[len(bad)/2] ^= 1
	if _, err := Decompress(bad, 1<<30); err == nil {
		t.Error("a damaged stream is taken")
	}
}

// fixBlockCRC makes the first block header of a stream consistent again.
func fixBlockCRC(z []byte) {
	n := (int(z[12]) + 1) * 4
	sum := crc32.ChecksumIEEE(z[12 : 12+n-4])
	for i := range 4 {
		z[12+n-4+i] = byte(sum >> (8 * i))
	}
}

func FuzzDecompress(f *testing.F) {
	for _, args := range [][]string{{"-0"}, {"-6", "--block-size=64"}, {"-Cnone"}} {
		f.Add(compressed(f, text[:100], args...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 12 && 12+(int(b[12])+1)*4 <= len(b) {
			fixBlockCRC(b) // else the fuzzer would not get past it
		}
		if out, err := Decompress(b, 1<<16); err == nil && len(out) > 1<<16 {
			t.Errorf("%d bytes", len(out))
		}
	})
}
