package goabi_test

import (
	"testing"

	"kprobes.dev/kprobes/internal/goabi"
)

func TestLayouts(t *testing.T) {
	for version, minor := range map[string]int{
		"go1.26":                       26,
		"go1.26.8":                     26,
		"go1.26rc1":                    26,
		"go1.26.8 X:nodwarf5":          26,
		"go1.26-custom":                26,
		"devel go1.26-1a2b3c4 Thu Jan": 26,
		"go1.25.14":                    25,
		"go1.24":                       24,
		"go1.23.0":                     23,
		"go1.2":                        0,
		"go1.260":                      0,
		"go1.99":                       0,
		"devel go1.27-1a2b3c4":         0,
		"devel +1a2b3c4":               0,
		"go1.":                         0,
		"go2.26":                       0,
		"go1.99999999999999999999":     0,
	} {
		got := goabi.Layouts(version)
		switch {
		case minor == 0 && len(got) != 0:
			t.Errorf("%q: layout of Go 1.%d, want none", version, got[0].Minor)
		case minor != 0 && (len(got) != 1 || int(got[0].Minor) != minor):
			t.Errorf("%q: %d layouts, want that of Go 1.%d", version, len(got), minor)
		}
	}
}

func TestLayoutsUnknown(t *testing.T) {
	all := goabi.Layouts("")
	if len(all) < 4 || all[0].Minor < 26 {
		t.Fatalf("%d layouts, the first of Go 1.%d: want all, newest first", len(all), all[0].Minor)
	}
	all[0].GoID = -1
	if goabi.Layouts("")[0].GoID == -1 {
		t.Error("a caller can change the table")
	}
}
