package gocontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// readerOf builds the program of testdata, and reads it.
func readerOf(t *testing.T, flags ...string) (path string, r *reader) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "otel")
	c := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), ".")...)
	c.Dir = "testdata/otel"
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := symbol.Open(bytes.NewReader(b), int64(len(b)), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := debuginfo.New(im.DebugSection)
	if err != nil {
		t.Fatal(err)
	}
	return path, &reader{im: im, f: f}
}

// TestRead has a program tell where its contexts have what they carry: its package has the names of OpenTelemetry's, and all else differs.
func TestRead(t *testing.T) {
	path, r := readerOf(t)
	c, err := r.read()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var told map[string]uint64
	if err := json.Unmarshal(out, &told); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]int32{"traceID": c.Trace, "spanID": c.Span, "traceFlags": c.Flags, "isRemote": c.Remote} {
		if uint64(got) != told["offset "+name] {
			t.Errorf("%s is at %d, and not at %d", name, got, told["offset "+name])
		}
	}
	if c.KeyType != told["key"] || c.Key != 41 || c.KeySize != 2 || c.KeyAt != 16 || c.ValueAt != 32 || c.Limit != Limit {
		t.Errorf("%+v, the program has told %v", c, told)
	}
	links := map[uint64]fetch.Link{}
	for _, l := range c.Links {
		links[l.Table] = l
	}
	for name, want := range map[string]fetch.Link{
		"background": {Kind: fetch.LinkRoot}, "todo": {Kind: fetch.LinkRoot}, "cancel": {}, "without": {}, "value": {Kind: fetch.LinkValue},
		"second": {Parent: int32(told["second at"])}, "*second": {Parent: int32(told["second at"])}, "third": {Parent: int32(told["third at"])},
	} {
		if want.Table = told[name]; links[want.Table] != want {
			t.Errorf("contexts of type %s are %+v, not %+v", name, links[want.Table], want)
		}
	}
	for _, name := range []string{"two", "far"} {
		if l, ok := links[told[name]]; ok {
			t.Errorf("contexts of type %s are gone through: %+v", name, l)
		}
	}
	spans := map[uint64]int32{}
	for _, s := range c.Spans {
		spans[s.Type] = s.At
	}
	for name, want := range map[string]int32{"noop": -1, "recording": int32(told["offset recording"]), "remote": int32(told["offset remote"])} {
		if at, ok := spans[told["span "+name]]; !ok || at != want {
			t.Errorf("spans of type %s have their context at %d, and not at %d (%v)", name, at, want, ok)
		}
	}
	if at, ok := spans[told["span other"]]; ok {
		t.Errorf("spans of a type that has none have their context at %d", at)
	}
}

// TestReadNone has a program without a symbol table.
func TestReadNone(t *testing.T) {
	_, r := readerOf(t, "-ldflags=-s -w=0")
	if c, err := r.read(); !errors.Is(err, errNoSpans) {
		t.Errorf("%+v, %v", c, err)
	}
}
