package errno_test

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/errno"
)

func TestErrorf(t *testing.T) {
	err := errno.Errorf(syscall.EILSEQ, "address %d: %w", 7, io.EOF)
	if got := err.Error(); got != "address 7: EOF" {
		t.Errorf("text %q", got)
	}
	var e syscall.Errno
	if !errors.Is(err, syscall.EILSEQ) || !errors.Is(err, io.EOF) || !errors.As(err, &e) || e != syscall.EILSEQ {
		t.Errorf("%v does not lead to its errno and its cause", err)
	}
	if errors.Is(err, syscall.EINVAL) {
		t.Errorf("%v is EINVAL", err)
	}
}
