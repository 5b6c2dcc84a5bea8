package main

import (
	"strings"
	"testing"
)

func TestCPUChecks(t *testing.T) {
	const text = "processor\t: 0\nmodel name\t: Box 3000\nflags\t\t: fpu lahf_lm rdpid user_shstk\n\nprocessor\t: 1\n"
	fs := checkCPU(text)
	if fs[0].Found != "Box 3000" || fs[0].Status != verdictOK || fs[1].Status != verdictOK || !strings.Contains(fs[2].Found, "refused") {
		t.Errorf("findings %+v", fs)
	}
	fs = checkCPU("")
	if fs[0].Status != verdictFail || fs[1].Status != verdictWarn {
		t.Errorf("findings of an unknown processor %+v", fs)
	}
}
