package kprobes_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

// What runs at a hit can not be probed.
func TestSelfOwnCodeRefused(t *testing.T) {
	for _, name := range []string{
		"kprobes.dev/kprobes/target/self.gate", "kprobes.dev/kprobes/target/self.dispatch", "kprobes.dev/kprobes/internal/target/patch.(*Threads).Standing",
		"kprobes.dev/kprobes/target/self.sigurg", "kprobes.dev/kprobes/internal/engine/handler.(*runs).runPre", "kprobes.dev/kprobes/internal/engine/handler.(*Runner).Bind.func1",
		"kprobes.dev/kprobes.newKprobe.func1",
	} {
		err := kprobes.RegisterKprobe(&kprobes.Kprobe{SymbolName: name})
		if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "blacklist") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
