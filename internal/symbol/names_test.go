package symbol

import (
	"net/url"
	"regexp"
	"testing"
)

// The expressions say what the hand-written functions must give.
var soName = regexp.MustCompile(`(?s)^(.+?)(-[0-9][0-9.]*)?(\.so)((\.[0-9]+)*)$`)

func FuzzWithoutVersion(f *testing.F) {
	for _, s := range []string{
		"libc.so.6", "libc-2.31.so", "ld-linux-x86-64.so.2", "libssl.so.1.1", "libfoo.so.1.so.2", ".so", "-1.so", "a-1-2.so",
		"a-1x.so", "a.so.", "a.so.1.", "a.so..1", "lib-.so", "lib-.1.so", "lib.so.6x", "program", "a.sob.so.12", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		bare, so := name, name
		if p := soName.FindStringSubmatch(name); p != nil {
			bare, so = p[1], p[1]+p[3]
		}
		if got := withoutVersion(name, false); got != bare {
			t.Errorf("withoutVersion(%q, false) = %q, want %q", name, got, bare)
		}
		if got := withoutVersion(name, true); got != so {
			t.Errorf("withoutVersion(%q, true) = %q, want %q", name, got, so)
		}
	})
}

func FuzzUnescapeGo(f *testing.F) {
	for _, s := range []string{
		"main.main", "gopkg.in/yaml%2ev3.Unmarshal", "a%2Eb%2ec", "%", "%2", "%zz", "%+1", "%-1", "%00", "a%e4b", "%2525", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want, err := url.PathUnescape(name)
		ok := err == nil && want != name
		if got, gotOK := unescapeGo(name); gotOK != ok || ok && got != want {
			t.Errorf("unescapeGo(%q) = %q, %v, want %q, %v", name, got, gotOK, want, ok)
		}
	})
}
